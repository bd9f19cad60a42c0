"""The truth about a step: the same weights in float32 with eager attention, one document at a time.

Nothing in it rests on packing, padding, masks of several documents, a fused kernel or the framework's own loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class DocumentTruth:
    """What the model says of one document alone: `hidden` (tokens, hidden size), `nll` (tokens - 1) of the next one."""

    hidden: Tensor
    nll: Tensor
    logits: Tensor  # (tokens, vocabulary)


class TruthModel:
    """The model of a rehearsal, as its folder holds it, in a dtype of choice."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, autocast: bool = False) -> None:
        from transformers import AutoModelForCausalLM

        keyword = _dtype_keyword()
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", local_files_only=True, **{keyword: dtype}
        )
        self.model.train()
        self.model.base_model.register_forward_hook(self._keep_hidden)
        self.autocast = autocast
        self._hidden: Tensor = torch.empty(0)
        self._truths: dict[tuple[int, ...], DocumentTruth] = {}

    def describe(self, tokens: Sequence[int]) -> DocumentTruth:
        """Return the truth about one piece of a document."""
        key = tuple(tokens)
        if key not in self._truths:
            with torch.no_grad(), self._context():
                self._truths[key] = self._run(torch.tensor([key]))
        return self._truths[key]

    def hidden_of_row(self, row: Sequence[int], positions: Sequence[int], visible: Tensor) -> Tensor:
        """Return the hidden states (tokens, hidden size) of a row where token i sees token j if `visible[i, j]`."""
        dtype = next(self.model.parameters()).dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]
        with torch.no_grad(), self._context():
            self.model(
                input_ids=torch.tensor([list(row)]),
                position_ids=torch.tensor([list(positions)]),
                attention_mask=mask,
                use_cache=False,
            )
        hidden: Tensor = self._hidden
        return hidden

    def gradients(self, pieces: Iterable[tuple[Sequence[int], Tensor]]) -> dict[str, Tensor]:
        """Return the gradients of Σ weight × nll over pieces of documents; weights (tokens - 1) are of the next."""
        self.model.zero_grad(set_to_none=True)
        for tokens, weights in pieces:
            if float(weights.abs().sum()) == 0:
                continue
            with self._context():
                logits = self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, :-1].float()
            nll = cross_entropy(logits, torch.tensor(list(tokens))[1:], reduction="none")
            (nll * weights).sum().backward()
        return {
            name: parameter.grad.detach().float().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }

    def _run(self, input_ids: Tensor) -> DocumentTruth:
        logits = self.model(input_ids=input_ids, use_cache=False).logits[0].float()
        nll = cross_entropy(logits[:-1], input_ids[0, 1:], reduction="none")
        return DocumentTruth(self._hidden, nll, logits)

    def _keep_hidden(self, decoder: Any, arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, (tuple, list)) else output.last_hidden_state
        self._hidden = hidden[0].detach().float()

    def _context(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()


def _dtype_keyword() -> str:
    """Return what this release of transformers calls the weights' dtype: `torch_dtype` before 4.56."""
    import transformers
    from packaging.version import Version

    return "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"


def token_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the relative error of each token's hidden state (tokens,)."""
    norm = expected.double().norm(dim=-1).clamp_min(1e-12)
    errors: Tensor = (actual.double() - expected.double()).norm(dim=-1) / norm
    return errors.nan_to_num(1e30)
