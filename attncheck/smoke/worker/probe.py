"""Watches a model's forwards: its routers' choices, its logits, and the loss's gradient at them.

It is used if a comparison fails, to distinguish a fault of attention from two other causes of gradient differences: a
wrong loss, and other experts because of rounding.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attncheck.smoke.worker.data.packing import DocumentSpan, next_token_labels

SELECTIONS = ("topk", "argmax", "max", "sort", "argsort")  # functions with which routers choose experts

# The location of a document: the number of the forward, and its position in that forward's rows.
Spot = tuple[int, DocumentSpan]


@dataclass
class Forward:
    """One forward of a model: `choices` are its selected indices, in order; the other fields concern its logits."""

    choices: list[Tensor] = field(default_factory=list)
    logits: Tensor | None = None  # (rows, tokens, vocabulary)
    logit_gradient: Tensor | None = None


class _SelectionListener(TorchFunctionMode):
    """Passes the indices of every top-k selection that leaves something out to the current forward."""

    def __init__(self, forwards: list[Forward]) -> None:
        super().__init__()
        self._forwards = forwards

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._forwards and getattr(func, "__name__", "") in SELECTIONS and args and isinstance(args[0], Tensor):
            indices = result if isinstance(result, Tensor) else getattr(result, "indices", None)
            if isinstance(indices, Tensor) and indices.dtype == torch.int64 and args[0].is_floating_point():
                self._forwards[-1].choices.append(indices.detach())
        return result


@contextmanager
def watch_forwards(model: nn.Module, with_choices: bool = True) -> Iterator[list[Forward]]:
    """Yield the list to which each forward of `model` inside the context is added.

    Without `with_choices` no function is intercepted, which a model under a compiler needs.
    """
    forwards: list[Forward] = []

    def begin(module: nn.Module, arguments: Any) -> None:
        forwards.append(Forward())

    def end(module: nn.Module, arguments: Any, output: Any) -> None:
        forward, logits = forwards[-1], getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            forward.logits = logits.detach()
            if logits.requires_grad:
                logits.register_hook(lambda gradient: setattr(forward, "logit_gradient", gradient.detach()))

    handles = [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]
    try:
        with ExitStack() as stack:
            if with_choices:
                stack.enter_context(_SelectionListener(forwards))
            yield forwards
    finally:
        for handle in handles:
            handle.remove()


def measure_loss_fault(forwards: Sequence[Forward], spots: Sequence[Spot], documents: Sequence[Tensor]) -> float:
    """Return the difference of the loss's gradient at the logits from that of the mean loss over all predicted tokens.

    The expected gradient uses the run's own logits: (softmax - label) / number of predicted tokens, and 0 at every
    other token. Only labels, weights and the normalisation can thus differ. The result is relative, and 0.0 if no
    gradient was recorded.
    """
    predicted_tokens = sum(max(0, len(document) - 1) for document in documents)
    squared_error = squared_norm = 0.0
    for number, forward in enumerate(forwards):
        if forward.logits is None or forward.logit_gradient is None:
            continue
        expected = torch.zeros_like(forward.logits, dtype=torch.float32)
        for (owner, span), document in zip(spots, documents, strict=True):
            if owner == number and len(document) > 1:
                rows = forward.logits[span.row, span.start : span.stop - 1].float().softmax(-1)
                labels = next_token_labels(document)[:-1].to(rows.device)
                rows[torch.arange(len(labels), device=rows.device), labels] -= 1.0
                expected[span.row, span.start : span.stop - 1] = rows / predicted_tokens
        squared_error += float((forward.logit_gradient.float() - expected).double().square().sum())
        squared_norm += float(expected.double().square().sum())
    return math.sqrt(squared_error / squared_norm) if squared_norm else 0.0


def count_flips(
    actual: tuple[Sequence[Forward], Sequence[Spot]], expected: tuple[Sequence[Forward], Sequence[Spot]]
) -> list[int] | None:
    """Return, per document, the tokens at which two runs chose other experts; None if they cannot be compared."""
    flips = []
    for (actual_owner, actual_span), (owner, span) in zip(actual[1], expected[1], strict=True):
        chosen = _document_choices(actual[0][actual_owner], actual_span)
        wanted = _document_choices(expected[0][owner], span)
        if chosen.shape != wanted.shape:
            return None
        flips.append(int((chosen != wanted.to(chosen.device)).any(-1).sum()))
    return flips


def _document_choices(forward: Forward, span: DocumentSpan) -> Tensor:
    """Return the choices for each token of a document: (tokens, choices), each selection's in ascending order.

    Selections that are not made token by token are left out.
    """
    columns = [torch.zeros(span.stop - span.start, 0, dtype=torch.int64)]
    rows, width = forward.logits.shape[:2] if forward.logits is not None else (0, 0)
    for indices in forward.choices:
        by_token = indices.shape[:1] == (rows * width,) or indices.shape[:2] == (rows, width)
        if by_token and indices.numel():
            of_rows = indices.reshape(rows, width, -1)[span.row, span.start : span.stop]
            columns.append(of_rows.sort(-1).values.cpu())
    return torch.cat(columns, dim=1)
