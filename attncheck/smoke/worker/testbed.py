"""The testbed of a worker: one model with one plan, and the reference for all comparisons.

The reference is the same weights in float32 with transformers' eager attention, one document at a time: it does not
depend on packing, padding, masks of several documents or a fused kernel.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attncheck.core.plan import Plan
from attncheck.smoke.worker.data import packing
from attncheck.smoke.worker.data.language import LANGUAGE_VOCABULARY, Language
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.models import build

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "autocast": torch.float32}
# Tokens of the checks' documents: one token, shorter and longer than a window, a multiple of a kernel's tile.
DOCUMENT_LENGTHS = (40, 7, 64, 1, 48)
EQUAL_LENGTHS = (48, 48, 48, 48, 48)  # for an implementation that compiles for each length
FP32_LIMIT = 1e-5  # relative error allowed in float32 for an ordinary model
ORDINARY_BF16_ERRORS = (0.02, 0.03)  # relative errors of an ordinary model's logits and gradients in bfloat16
# Allowed multiple of the unpacked run's rounding error for a 16-bit run; healthy ones have 1.0 to 1.1.
ROUNDING_MULTIPLE = 2.0
TINY = 1e-30
# flash-attn 2, 3 and 4, also from the Hub. flash-attn-3 (0251105a) ends in SIGSEGV where others raise.
HALF_PRECISION_ONLY = re.compile(r"flash_attention_\d|/.*flash[-_]?attn")
# Exceptions of transformers, torch and kernels for a model, a shape or a device that they do not support.
UNSUPPORTED_ERRORS = (ValueError, RuntimeError, NotImplementedError, TypeError, ImportError, KeyError)

Gradients = Mapping[str, Tensor]  # by parameter's name, float32


@dataclass(frozen=True)
class ModelRun:
    """A model's results for documents: the logits (tokens, vocabulary) of each, the mean loss, the gradients."""

    logits: tuple[Tensor, ...]
    loss: float
    gradients: Gradients


class Testbed:
    """One model with one plan on one device, with the documents and references of its checks."""

    def __init__(
        self,
        source: build.Architecture,
        plan: Plan,
        device: Any,
        send: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> None:
        self.source, self.plan, self.device, self.send = source, plan, torch.device(device), send
        language = Language(plan.seed)
        lengths = EQUAL_LENGTHS if plan.attn_implementation == "flex_attention" else DOCUMENT_LENGTHS
        self.documents = tuple(language.next_document(length) for length in lengths)
        self.replacements = tuple((document + 1) % LANGUAGE_VOCABULARY for document in self.documents)

    def build_model(
        self, plan: Plan | None = None, implementation: str | None = None, sharp_weights: bool = True
    ) -> nn.Module:
        """Return a new model with the testbed's weights in a plan's implementation and precision; never a shared one.

        It is in training mode, unless it is random there: see `quieten`. `sharp_weights` make attention far from
        uniform, for checks; otherwise weights are the architecture's initial ones. Raises transformers' own error for
        an implementation that it refuses, and `ValueError` for float32 if a flash kernel would refuse it or crash.
        """
        plan = plan or self.plan
        attn_implementation = plan.attn_implementation if implementation is None else implementation
        is_ours = plan.precision == "fp32" != self.plan.precision  # only for a check; the job does not request it
        if is_ours and HALF_PRECISION_ONLY.search(attn_implementation):
            raise ValueError(f"{attn_implementation} supports only float16 and bfloat16")
        max_tokens = max(plan.max_length, sum(DOCUMENT_LENGTHS))
        return self.quieten(
            build.build_model(
                self.source,
                attn_implementation,
                DTYPES[plan.precision],
                self.device,
                max_tokens,
                plan.seed,
                sharp_weights,
            )
        )

    def quieten(self, model: nn.Module) -> nn.Module:
        """Return the model, in evaluation mode if it is random in training mode, because comparisons must repeat."""
        return model.eval() if self.random_in_training else model

    @cached_property
    def random_in_training(self) -> str:
        """How much two runs of the same documents in training mode differ; "" if they do not.

        The runs use float32 with eager attention, where only random numbers cause differences beyond rounding.
        """
        return self._ask_twice(training=True)

    @cached_property
    def random_always(self) -> str:
        """Why this model cannot be compared: it is random in evaluation mode too; "" if it can."""
        return self._ask_twice(training=False) if self.random_in_training else ""

    def _ask_twice(self, training: bool) -> str:
        tokens = max(self.plan.max_length, sum(DOCUMENT_LENGTHS))
        try:
            model = build.build_model(self.source, "eager", torch.float32, self.device, tokens, self.plan.seed, True)
            model.train(training)
            with torch.no_grad():
                first, again = (
                    [model(input_ids=d[None].to(self.device), use_cache=False).logits.float() for d in self.documents]
                    for _ in range(2)
                )
        except UNSUPPORTED_ERRORS:
            return ""  # the checks that need the reference report it
        error = relative_error(again, first)
        mode = "training" if training else "evaluation"
        return f"random in {mode} mode: two runs of the same documents differ by {error:.2g}" * (error > FP32_LIMIT)

    def autocast_context(self, plan: Plan | None = None) -> Any:
        """Return the context in which a plan computes: autocast if its precision requires it, otherwise none."""
        if (plan or self.plan).precision == "autocast":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def training_source(self, seed: int) -> Language:
        """Return the training documents, from the first one: the synthetic language's from a seed."""
        return Language(seed)

    def make_batch(self, rows: Sequence[Sequence[Tensor]], plan: Plan | None = None) -> Batch:
        """Return rows of documents as the plan's tensors, the way the job's packer would make them."""
        plan = plan or self.plan
        return packing.make_batch(rows, plan, self.device, self.source.pad_token_id, DTYPES[plan.precision])

    def make_rows(self, documents: Sequence[Tensor] | None = None, plan: Plan | None = None) -> list[list[Tensor]]:
        """Return the checks' documents in the plan's number of rows, one after another in each row."""
        documents = list(self.documents if documents is None else documents)
        count = min((plan or self.plan).batch, len(documents))
        return [documents[index::count] for index in range(count)]

    def document_order(self, plan: Plan | None = None) -> list[int]:
        """Return the index of each document in the order of `make_rows` and of a batch's spans."""
        count = min((plan or self.plan).batch, len(self.documents))
        return [index for row in range(count) for index in range(row, len(self.documents), count)]

    def run_batch(self, model: nn.Module, batch: Batch, plan: Plan | None = None, backward: bool = True) -> ModelRun:
        """Run a model on a batch, forward and backward; the loss is the mean over all predicted tokens."""
        with self.autocast_context(plan), torch.set_grad_enabled(backward):
            logits = model(**batch.inputs).logits
        return collect_run(model, logits, batch, backward)

    def run_unpacked(self, model: nn.Module, documents: Sequence[Tensor], plan: Plan | None = None) -> ModelRun:
        """Run a model on documents one at a time, without any mask, forward and backward."""
        document_logits, losses, predicted_tokens = [], [], sum(max(0, len(document) - 1) for document in documents)
        model.zero_grad(set_to_none=True)
        for document in documents:
            input_ids = document[None].to(self.device)
            with self.autocast_context(plan):
                logits = model(input_ids=input_ids, use_cache=False).logits[0]
            labels = packing.next_token_labels(document).to(self.device)
            loss = summed_loss(logits, labels) / predicted_tokens
            if len(document) > 1:
                loss.backward()
            losses.append(float(loss.detach()))
            document_logits.append(logits.detach().float())
        return ModelRun(tuple(document_logits), sum(losses), collect_gradients(model))

    @cached_property
    def reference(self) -> ModelRun:
        """The reference: float32, eager, one document at a time, in the order of `documents`."""
        plan = self.plan.without_optimizations("fp32")
        return self.run_unpacked(self.build_model(plan, "eager"), self.documents, plan)

    @cached_property
    def implementation_reference(self) -> ModelRun:
        """The documents one at a time in float32 with the plan's implementation; `reference` if that cannot run."""
        plan = self.plan.without_optimizations("fp32")
        try:
            return self.run_unpacked(self.build_model(plan), self.documents, plan)
        except UNSUPPORTED_ERRORS:
            return self.reference

    @cached_property
    def rounded_reference(self) -> ModelRun:
        """The same documents one at a time in the plan's precision and implementation, only for the rounding error.

        If the implementation cannot run a single document, eager runs in the same precision.
        """
        try:
            return self.run_unpacked(self.build_model(), self.documents)
        except UNSUPPORTED_ERRORS:
            return self.run_unpacked(self.build_model(implementation="eager"), self.documents)

    @cached_property
    def no_backward_reason(self) -> str:
        """Why the plan's implementation has no backward on this device, "" if it has one."""
        try:
            self.run_batch(self.build_model(), self.make_batch(self.make_rows()))
        except NotImplementedError as error:
            return str(error).split(". ")[0]
        return ""

    def rounding_errors(self) -> tuple[float, float]:
        """Return the relative rounding errors of logits and of gradients with the plan."""
        return measure_errors(self.rounded_reference, self.reference)

    @cached_property
    def fp32_limits(self) -> tuple[float, float]:
        """The largest relative errors of logits and gradients allowed in float32.

        A model that amplifies rounding more than others, as models with a recurrent state do, does so in float32 too;
        bfloat16 shows how much.
        """
        plan = self.plan.without_optimizations("bf16")
        coarse = self.run_unpacked(self.build_model(plan, "eager"), self.documents, plan)
        return scale_fp32_limits(measure_errors(coarse, self.reference))

    def error_limits(self, precision: str = "") -> tuple[float, float]:
        """Return the largest relative errors of logits and gradients allowed in a precision, by default the plan's."""
        if (precision or self.plan.precision) == "fp32":
            return self.fp32_limits
        logits, gradients = self.rounding_errors()
        return ROUNDING_MULTIPLE * logits, ROUNDING_MULTIPLE * gradients


def measure_errors(actual: ModelRun, expected: ModelRun) -> tuple[float, float]:
    """Return the relative errors of a run's logits and of its gradients."""
    return relative_error(actual.logits, expected.logits), gradient_error(actual.gradients, expected.gradients)


def scale_fp32_limits(errors: tuple[float, float]) -> tuple[float, float]:
    """Return the limits of logits and gradients in float32 for a model with these errors in bfloat16."""
    logits, gradients = (error / ordinary for error, ordinary in zip(errors, ORDINARY_BF16_ERRORS, strict=True))
    return FP32_LIMIT * max(1.0, logits), FP32_LIMIT * max(1.0, gradients)


def collect_run(model: nn.Module, logits: Tensor, batch: Batch, backward: bool = True) -> ModelRun:
    """Return each document's logits, the mean loss over all predicted tokens, and the gradients with `backward`."""
    loss = summed_loss(logits, batch.labels) / batch.predicted_tokens
    gradients: Gradients = {}
    if backward:
        model.zero_grad(set_to_none=True)
        loss.backward()
        gradients = collect_gradients(model)
    row_logits = logits.detach().float()
    return ModelRun(tuple(row_logits[s.row, s.start : s.stop] for s in batch.spans), float(loss.detach()), gradients)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of all predicted labels, summed in float32."""
    flat = logits.float().reshape(-1, logits.shape[-1])
    return cross_entropy(flat, labels.reshape(-1), ignore_index=packing.IGNORE_INDEX, reduction="sum")


def collect_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a model's parameters in float32, by name, without unused parameters."""
    return {name: p.grad.detach().float().clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the Frobenius norm of the error divided by that of `expected`, over all tensors; a NaN counts as 1e30."""
    squared_error = sum(float((a.double() - e.double()).square().sum()) for a, e in zip(actual, expected, strict=True))
    squared_norm = sum(float(e.double().square().sum()) for e in expected)
    ratio = (squared_error / max(squared_norm, TINY)) ** 0.5
    return ratio if ratio < 1e30 else 1e30


def gradient_error(actual: Gradients, expected: Gradients) -> float:
    """Return `relative_error` over the gradients of all parameters; a missing one counts as zeros."""
    names = list(expected)
    zeros = {name: torch.zeros_like(expected[name]) for name in names if name not in actual}
    return relative_error(
        [actual.get(name, zeros.get(name, expected[name])) for name in names], [expected[name] for name in names]
    )


def worst_parameter(actual: Gradients, expected: Gradients) -> str:
    """Return the name of the parameter with the largest gradient error, in units of the full gradient's norm."""
    zero = torch.zeros(())
    errors = {name: float((actual.get(name, zero).double() - e.double()).norm()) for name, e in expected.items()}
    return max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else 1e30)


def gradient_norm(gradients: Gradients) -> float:
    """Return the norm of the gradients of all parameters together."""
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
