"""The test bed of a worker: one model under one plan, and the reference that everything is compared with.

The reference is the same weights in float32 with transformers' eager attention, one document at a time: nothing in it
rests on packing, padding, masks of several documents or a fused kernel.
"""

from __future__ import annotations

import math
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
from attncheck.smoke.worker.data.corpus import Corpus
from attncheck.smoke.worker.data.language import WORDS, Language, Source
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.models import build

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "autocast": torch.float32}
# Lengths of the proofs' documents: one token, shorter and longer than a window, a multiple of a kernel's tile.
LENGTHS = (40, 7, 64, 1, 48)
ALIKE = (48, 48, 48, 48, 48)  # for an implementation that compiles every length anew
EXACT = 1e-5  # relative error that float32 allows itself in an ordinary model
ORDINARY = (0.02, 0.03)  # relative errors that bfloat16 makes of an ordinary model's logits and gradients
FLOORS = 2.0  # times the rounding of the unpacked run that a 16-bit run may be off; healthy ones are at 1.0 to 1.1
TINY = 1e-30
# What transformers, torch and kernels raise for a model, a shape or a device that they do not serve.
REFUSALS = (ValueError, RuntimeError, NotImplementedError, TypeError, ImportError, KeyError)

Gradients = Mapping[str, Tensor]  # by parameter's name, float32


@dataclass(frozen=True)
class Result:
    """What a model made of documents: the logits (tokens, vocabulary) of each, the mean loss, the gradients."""

    logits: tuple[Tensor, ...]
    loss: float
    gradients: Gradients


class Bed:
    """One model, one plan, one device."""

    def __init__(
        self,
        source: build.Architecture,
        plan: Plan,
        device: Any,
        say: Callable[[dict[str, Any]], None] = lambda document: None,
        corpus: Corpus | None = None,
    ) -> None:
        self.source, self.plan, self.device, self.say = source, plan, torch.device(device), say
        self.corpus = corpus
        self.notes: tuple[str, ...] = ()  # what whoever reads the training run should know of its documents
        language = Language(plan.seed)
        lengths = ALIKE if plan.attn_implementation == "flex_attention" else LENGTHS
        self.documents = tuple(language.document(length) for length in lengths)
        self.other = tuple((document + 1) % WORDS for document in self.documents)

    def model(self, plan: Plan | None = None, implementation: str | None = None, sharp: bool = True) -> nn.Module:
        """Return a model with the bed's weights in a plan's implementation and precision; never a shared one.

        `sharp` weights make attention far from uniform, for proofs; else they are as the architecture begins training.
        Raises what transformers raises for an implementation that it refuses.
        """
        plan = plan or self.plan
        wanted = plan.attn_implementation if implementation is None else implementation
        longest = max(plan.max_length, sum(LENGTHS))
        return build.build(self.source, wanted, DTYPES[plan.precision], self.device, longest, plan.seed, sharp)

    def arithmetic(self, plan: Plan | None = None) -> Any:
        """Return the context in which a plan computes: autocast where its precision says so."""
        if (plan or self.plan).precision == "autocast":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def texts(self, seed: int) -> Source:
        """Return what to train on, from its beginning: the user's documents, or the language from a seed."""
        return self.corpus.again() if self.corpus is not None else Language(seed)

    def batch(self, rows: Sequence[Sequence[Tensor]], plan: Plan | None = None) -> Batch:
        """Return rows of documents as the plan's tensors, as the job's packer would make them."""
        plan = plan or self.plan
        return packing.batch(rows, plan, self.device, self.source.pad, DTYPES[plan.precision])

    def rows(self, documents: Sequence[Tensor] | None = None, plan: Plan | None = None) -> list[list[Tensor]]:
        """Return the proofs' documents in the plan's number of rows, one after the other in each row."""
        documents = list(self.documents if documents is None else documents)
        count = min((plan or self.plan).batch, len(documents))
        return [documents[index::count] for index in range(count)]

    def order(self, plan: Plan | None = None) -> list[int]:
        """Return the index of each document in the order in which `rows` and a batch's spots have them."""
        count = min((plan or self.plan).batch, len(self.documents))
        return [index for row in range(count) for index in range(row, len(self.documents), count)]

    def run(self, model: nn.Module, batch: Batch, plan: Plan | None = None, backward: bool = True) -> Result:
        """Return what a model makes of a batch; the loss is the mean over all predicted tokens."""
        with self.arithmetic(plan), torch.set_grad_enabled(backward):
            logits = model(**batch.inputs).logits
        return result(model, logits, batch, backward)

    def alone(self, model: nn.Module, documents: Sequence[Tensor], plan: Plan | None = None) -> Result:
        """Return what a model makes of documents given one at a time, without any mask."""
        found, losses, count = [], [], sum(max(0, len(document) - 1) for document in documents)
        model.zero_grad(set_to_none=True)
        for document in documents:
            ids = document[None].to(self.device)
            with self.arithmetic(plan):
                logits = model(input_ids=ids, use_cache=False).logits[0]
            labels = packing.following(document).to(self.device)
            loss = _summed(logits, labels) / count
            if len(document) > 1:
                loss.backward()
            losses.append(float(loss.detach()))
            found.append(logits.detach().float())
        return Result(tuple(found), sum(losses), taken(model))

    @cached_property
    def exact(self) -> Result:
        """The reference: float32, eager, one document at a time, in the bed's order of documents."""
        plan = self.plan.bare("fp32")
        return self.alone(self.model(plan, "eager"), self.documents, plan)

    @cached_property
    def own(self) -> Result:
        """The documents one at a time in float32 under the plan's implementation; the reference where it cannot."""
        plan = self.plan.bare("fp32")
        try:
            return self.alone(self.model(plan), self.documents, plan)
        except REFUSALS:
            return self.exact

    @cached_property
    def rounded(self) -> Result:
        """The same documents one at a time in the plan's precision and implementation: what rounding alone makes.

        Where the implementation cannot run one document by itself, eager in the same precision.
        """
        try:
            return self.alone(self.model(), self.documents)
        except REFUSALS:
            return self.alone(self.model(implementation="eager"), self.documents)

    @cached_property
    def untrainable(self) -> str:
        """Why the plan's implementation has no backward on this device, "" where it has one."""
        try:
            self.run(self.model(), self.batch(self.rows()))
        except NotImplementedError as error:
            return str(error).split(". ")[0]
        return ""

    def floor(self) -> tuple[float, float]:
        """Return the relative error that rounding alone makes of logits and of gradients, under the plan."""
        return relative(self.rounded.logits, self.exact.logits), apart(self.rounded.gradients, self.exact.gradients)

    @cached_property
    def exactness(self) -> tuple[float, float]:
        """How far logits and gradients may be off in float32.

        A model that makes more of rounding than others, as those with a recurrent state do, does so in float32 too;
        bfloat16 shows how much.
        """
        plan = self.plan.bare("bf16")
        coarse = self.alone(self.model(plan, "eager"), self.documents, plan)
        logits = relative(coarse.logits, self.exact.logits) / ORDINARY[0]
        gradients = apart(coarse.gradients, self.exact.gradients) / ORDINARY[1]
        return EXACT * max(1.0, logits), EXACT * max(1.0, gradients)

    def limits(self, precision: str = "") -> tuple[float, float]:
        """Return how far logits and gradients may be off in a precision, the plan's where none is named."""
        if (precision or self.plan.precision) == "fp32":
            return self.exactness
        logits, gradients = self.floor()
        return FLOORS * logits, FLOORS * gradients


def result(model: nn.Module, logits: Tensor, batch: Batch, backward: bool = True) -> Result:
    """Return the logits of each document, the mean loss over all predicted tokens, and the gradients."""
    loss = _summed(logits, batch.labels) / batch.tokens
    gradients: Gradients = {}
    if backward:
        model.zero_grad(set_to_none=True)
        loss.backward()
        gradients = taken(model)
    whole = logits.detach().float()
    return Result(tuple(whole[s.row, s.start : s.stop] for s in batch.spots), float(loss.detach()), gradients)


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    flat = logits.float().reshape(-1, logits.shape[-1])
    return cross_entropy(flat, labels.reshape(-1), ignore_index=packing.IGNORED, reduction="sum")


def taken(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a model's parameters in float32; a parameter that was not used has none."""
    return {name: p.grad.detach().float().clone() for name, p in model.named_parameters() if p.grad is not None}


def relative(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the Frobenius norm of the error over that of what was wanted, over all tensors; a NaN counts as 1e30."""
    error = sum(float((g.double() - w.double()).square().sum()) for g, w in zip(got, wanted, strict=True))
    size = sum(float(w.double().square().sum()) for w in wanted)
    found = (error / max(size, TINY)) ** 0.5
    return found if found < 1e30 else 1e30


def apart(got: Gradients, wanted: Gradients) -> float:
    """Return `relative` over the gradients of all parameters; one that is missing counts as zeros."""
    names = list(wanted)
    blank = {name: torch.zeros_like(wanted[name]) for name in names if name not in got}
    return relative([got.get(name, blank.get(name, wanted[name])) for name in names], [wanted[name] for name in names])


def worst(got: Gradients, wanted: Gradients) -> str:
    """Return the name of the parameter whose gradient is farthest off, in units of the whole gradient's norm."""
    zero = torch.zeros(())
    errors = {name: float((got.get(name, zero).double() - w.double()).norm()) for name, w in wanted.items()}
    return max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else 1e30)


def norm(gradients: Gradients) -> float:
    """Return the norm of the gradient of all parameters."""
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
