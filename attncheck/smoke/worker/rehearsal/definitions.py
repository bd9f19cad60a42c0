"""Which loss a step had: the documented mean, or another one, as its value and its gradients show.

A loss is defined by what each token is to predict, and by the weight of every target. Gradients decide where they were
seen: what is differentiated may be any multiple of the mean (a sum that is divided later, a gradient scaler's) as long
as the optimiser steps with the mean's gradients; and two definitions may agree on a value by chance, on the gradients
of all parameters they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from attncheck.core.rehearsal import NORMALISATION_TEXTS, NORMALISATIONS, Normalisation
from attncheck.smoke.worker.rehearsal.evidence import FP32_LIMIT, ROUNDING_MULTIPLE, Evidence
from attncheck.smoke.worker.rehearsal.step import Sliced
from attncheck.smoke.worker.testbed import gradient_error

MIN_LIMIT = 1e-4  # relative; losses are summed in float32
SCALE_LIMIT = 5e-3  # of the gradients' norm: a factor, which Adam hides, is wrong above it
NO_GRADIENTS = "the gradients were not seen: they are sharded over ranks"


@dataclass(frozen=True)
class Definition:
    """A loss: the mean `normalisation` of −log p of the token `shift` ahead; `every`: over all tokens of a document."""

    normalisation: Normalisation
    shift: int = 1
    every: bool = False
    batch: int = -1  # the one batch that counts, -1: all
    sliced: Sliced | None = None  # how targets are read in rows over several ranks
    by_rank: bool = False  # the mean of each rank's slice alone, averaged over ranks

    @property
    def text(self) -> str:
        """The mean in words."""
        mean = "each rank's mean over the targets of its slice alone, averaged: " if self.by_rank else ""
        return mean + NORMALISATION_TEXTS[self.normalisation]

    def list_parts(self, ranks: int) -> list[Definition]:
        """Return the definitions whose mean this one is: one for each of the `ranks` that share a row."""
        if not self.by_rank:
            return [self]
        sliced = self.sliced or Sliced()
        return [replace(self, by_rank=False, sliced=replace(sliced, rank=rank)) for rank in range(ranks)]


@dataclass(frozen=True)
class Fit:
    """How the gradients of a step compare with a definition's: they are `scale` times those, but for `error`."""

    error: float  # relative, over all parameters
    scale: float


def list_shares(evidence: Evidence, definition: Definition) -> list[float]:
    """Return the weight of one target of each piece of the step."""
    counts = evidence.count_targets(definition.shift, definition.every, definition.sliced)
    shares = evidence.list_shares(definition.normalisation, counts)
    if definition.batch < 0:
        return shares
    return [
        share if piece.call.batch == definition.batch else 0.0
        for share, piece in zip(shares, evidence.step.pieces, strict=True)
    ]


def compute_loss(evidence: Evidence, definition: Definition) -> float:
    """Return what the loss of the step is by a definition, in nats a token."""
    parts = definition.list_parts(evidence.step.layout.size)
    return sum(_compute_part(evidence, part) for part in parts) / len(parts)


def _compute_part(evidence: Evidence, definition: Definition) -> float:
    sums = evidence.sum_nll(definition.shift, definition.every, definition.sliced)
    return sum(share * nll for share, nll in zip(list_shares(evidence, definition), sums, strict=True))


def compute_gradients(evidence: Evidence, definition: Definition) -> dict[str, Tensor]:
    """Return what the gradients of the step are by a definition."""
    parts = definition.list_parts(evidence.step.layout.size)
    total: dict[str, Tensor] = {}
    for part in parts:
        shares = list_shares(evidence, part)
        gradients = evidence.sum_gradients(shares, part.shift, part.every, sliced=part.sliced)
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0.0) + gradient / len(parts)
    return total


def fit_gradients(evidence: Evidence, definition: Definition) -> Fit | None:
    """Compare the gradients of the step with a definition's; None where they were not seen."""
    expected = compute_gradients(evidence, definition)
    actual = {name: evidence.observed_gradients[name] for name in expected if name in evidence.observed_gradients}
    expected = {name: expected[name] for name in actual}
    square = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    if not square:
        return None
    product = sum(float((actual[name].double() * expected[name].double()).sum()) for name in expected)
    scale = product / square
    return Fit(gradient_error(actual, {name: gradient * scale for name, gradient in expected.items()}), scale)


def loss_limit(evidence: Evidence) -> float:
    """Return the largest relative error allowed of the loss: several times what rounding costs eager attention."""
    if evidence.rounded is None:
        return max(MIN_LIMIT, FP32_LIMIT)
    exact = rounded = 0.0
    for piece in evidence.judged_pieces[:8]:
        labels, counts = piece.shift_labels(1)
        exact += float(evidence.describe(piece).nll(labels)[counts].sum())
        difference = evidence.rounded.describe(piece.tokens).nll(labels) - evidence.describe(piece).nll(labels)
        rounded += float(difference.abs()[counts].sum())
    return max(MIN_LIMIT, ROUNDING_MULTIPLE * rounded / max(exact, 1e-12))


def gradient_limit(evidence: Evidence) -> float:
    """Return the largest relative error allowed of the gradients."""
    if evidence.rounded is None:
        return FP32_LIMIT
    shares = list_shares(evidence, documented(evidence)[0])
    rounded, exact = evidence.sum_gradients(shares, rounded=True), evidence.sum_gradients(shares)
    return max(FP32_LIMIT, ROUNDING_MULTIPLE * gradient_error(rounded, exact))


def documented(evidence: Evidence) -> list[Definition]:
    """Return the definitions that the job's framework documents."""
    return [Definition(name) for name in evidence.step.objective.normalisations]


@dataclass(frozen=True)
class Explanation:
    """What a step's loss is: `factor` times a definition's. `fault` says what is wrong with it, "" where nothing is."""

    definition: Definition
    factor: float = 1.0
    fault: str = ""
    scale: float | None = None  # of the gradients to the definition's own, where they were compared


def explain_loss(evidence: Evidence) -> Explanation | None:
    """Return the definition that the step's loss and gradients follow; None where none does."""
    limit, slack = loss_limit(evidence), gradient_limit(evidence)
    observed = evidence.observed_loss
    for definition in documented(evidence):
        if _is_near(compute_loss(evidence, definition), observed, limit):
            return Explanation(definition)
    for definition in documented(evidence):
        fit = fit_gradients(evidence, definition)
        if fit is not None and fit.error <= slack and abs(fit.scale - 1.0) <= max(SCALE_LIMIT, slack):
            return Explanation(definition, observed / compute_loss(evidence, definition), scale=fit.scale)
    for explanation in _iter_faults(evidence):
        value = compute_loss(evidence, explanation.definition) * explanation.factor
        if _is_near(value, observed, limit):
            fit = fit_gradients(evidence, explanation.definition)
            if fit is None or fit.error <= slack:
                return replace(explanation, scale=fit.scale if fit is not None else None)
    return _explain_direction(evidence, slack)


def _explain_direction(evidence: Evidence, slack: float) -> Explanation | None:
    """Return the definition whose gradients have the direction of the step's, whatever the loss is; None without."""
    simple = [explanation for explanation in _iter_faults(evidence) if explanation.factor == 1.0]
    for explanation in (*(Explanation(definition) for definition in documented(evidence)), *simple):
        definition = explanation.definition
        fit, mean = fit_gradients(evidence, definition), compute_loss(evidence, definition)
        if fit is not None and fit.error <= slack and mean:
            factor = evidence.observed_loss / mean
            multiple = f"{factor:.4g} times {definition.text}"
            is_named = definition.shift != 1 or definition.every or definition.sliced or definition.by_rank
            fault = f"{explanation.fault} ({multiple})" if is_named else multiple
            return Explanation(definition, factor, fault, fit.scale)
    return None


def _is_near(value: float, observed: float, limit: float) -> bool:
    return abs(value - observed) <= limit * abs(observed)


def _iter_faults(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what the loss would be under other definitions, the simplest first."""
    for name in NORMALISATIONS:
        yield Explanation(Definition(name), 1.0, NORMALISATION_TEXTS[name])
    yield from iter_slice_faults(evidence)
    batches, sharing = evidence.batches, evidence.step.layout.size
    ranks = len(evidence.step.ranks) // sharing
    factors = {
        "too large by the size of the sequence-parallel group": float(sharing),
        "divided by the size of the sequence-parallel group once too often": 1.0 / sharing,
        "the sum over the step's batches, not their mean: too large by the accumulation": float(batches),
        "divided by the accumulation twice": 1.0 / batches,
        "too large by the number of ranks": float(ranks),
        "divided by the number of ranks once too often": 1.0 / ranks,
        "too large by the accumulation and the number of ranks": float(batches * ranks),
    }
    if sharing > 1 and ranks > 1:
        factors["divided by the number of all ranks, those that share a row too"] = 1.0 / (ranks * sharing)
    names: tuple[Normalisation, ...] = ("step_tokens", "batch_tokens", "row_tokens")
    for factor in dict.fromkeys(factors.values()):
        text = ", or ".join(text for text, value in factors.items() if value == factor)
        for name in names:
            if factor != 1.0:
                yield Explanation(Definition(name), factor, f"{text} ({NORMALISATION_TEXTS[name]})")
    for name in names[:2]:
        after_next, itself = Definition(name, shift=2), Definition(name, shift=0)
        yield Explanation(after_next, 1.0, "each token is to predict the one after the next: labels shifted twice")
        yield Explanation(itself, 1.0, "each token is to predict itself: labels are not shifted")
        yield Explanation(Definition(name, every=True), 1.0, "every token is a target, prompts and markup too")
    targets, ranks = float(sum(evidence.count_targets())), len(evidence.step.ranks)
    yield Explanation(Definition("step_tokens"), targets, "the sum over target tokens, not their mean")
    yield Explanation(Definition("step_tokens"), targets / ranks, "the sum over target tokens, not their mean")


def iter_slice_faults(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what goes wrong with labels and means where ranks hold slices of a row."""
    if all(call.places is None for call in evidence.step.calls):
        return
    lost = "labels are shifted within each rank's slice: its last token has no target"
    rolled = "labels are shifted within each rank's slice: its last token is to predict its first"
    names: tuple[Normalisation, ...] = ("step_tokens", "batch_tokens")
    for name in names:
        yield Explanation(Definition(name, sliced=Sliced("lost")), 1.0, lost)
        yield Explanation(Definition(name, sliced=Sliced("rolled")), 1.0, rolled)
        yield Explanation(Definition(name, sliced=Sliced("misplaced")), 1.0, rolled)
        alone = Definition(name, by_rank=True)
        yield Explanation(alone, 1.0, alone.text)
        own = Definition(name, sliced=Sliced("lost"), by_rank=True)
        yield Explanation(own, 1.0, f"{lost}; and the loss is {own.text}")


def settle_targets(evidence: Evidence) -> Evidence:
    """Return the evidence under the targets that its loss and gradients show, where no label said which they are."""
    readings = [replace(evidence, step=step) for step in evidence.step.list_readings()]
    if len(readings) == 1:
        return evidence
    explanations = [(explain_loss(reading), reading) for reading in readings]
    right = [reading for explanation, reading in explanations if explanation is not None and not explanation.fault]
    named = [reading for explanation, reading in explanations if explanation is not None]
    return next(iter((*right, *named, evidence)))
