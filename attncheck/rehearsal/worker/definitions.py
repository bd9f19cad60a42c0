"""Describes a loss by its gradients, that is by the weight of each target, and compares a step's gradients with them.

The gradients of every rehearsed loss are those of a weighted sum of −log p over the targets of a step's pieces. For the
mean of −log p, the weights are those of its normalisation. For a loss of answers' log-probabilities (pairs, rewards),
each answer has its own weight of either sign at the first step, because the model is its own reference. The loss's
value is not such a sum.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from attncheck.core.rehearsal import NORMALISATION_TEXTS, Normalisation
from attncheck.rehearsal.worker.evidence import ROUNDING_MULTIPLE, Evidence
from attncheck.rehearsal.worker.step import Sliced
from attncheck.smoke.worker.testbed import gradient_error

# In float32, relative. Rounding moves single elements across a threshold: 2.3e-4 was measured between sdpa and eager in
# gemma3n, which has sparse activations. Faults are at 1e-2.
FP32_GRADIENT_LIMIT = 5e-4
LEAST_EXPONENT = 14
Answer = TypeVar("Answer")
SCALE_LIMIT = 5e-3  # relative error of the gradients' norm: a larger factor, which Adam hides, is an error


@dataclass(frozen=True)
class Definition:
    """A loss: the mean `normalisation` of −log p of the token `shift` ahead; `every`: over all tokens of a document."""

    normalisation: Normalisation
    shift: int = 1
    every: bool = False
    batch: int = -1  # the only batch that counts, -1: all
    weights: tuple[float, ...] = ()  # for each piece of the step, times the normalisation's weight; (): 1
    value: float | None = None  # the loss's value, if it is not that sum
    name: str = ""  # in words, if it is not the normalisation's mean
    sliced: Sliced | None = None  # how targets are read in rows that are split across ranks
    by_rank: bool = False  # whether it is the mean of each rank's slice, averaged across ranks

    @property
    def text(self) -> str:
        """The loss in words."""
        mean = "the mean over the targets of each rank's slice, averaged: " if self.by_rank else ""
        return self.name or mean + NORMALISATION_TEXTS[self.normalisation]

    @property
    def has_other_targets(self) -> bool:
        """Whether the targets are not just the next tokens, so that more than a factor is unusual."""
        return bool(self.shift != 1 or self.every or self.sliced or self.by_rank)

    def list_parts(self, ranks: int) -> "list[Definition]":
        """Return the definitions that this one is the mean of: one for each of the `ranks` that share a row."""
        if not self.by_rank:
            return [self]
        sliced = self.sliced or Sliced()
        return [replace(self, by_rank=False, sliced=replace(sliced, rank=rank)) for rank in range(ranks)]


@dataclass(frozen=True)
class Fit:
    """The relation of a step's gradients to a definition's: `scale` times these, plus a relative `error`."""

    error: float  # relative, over all parameters
    scale: float


@dataclass(frozen=True)
class WeightFit:
    """The weights of a step's pieces that give a definition the step's gradients, except for the relative `error`."""

    error: float
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Explanation:
    """A step's loss: `factor` times a definition's. `fault` describes the fault, "" if there is none."""

    definition: Definition
    factor: float = 1.0
    fault: str = ""
    scale: float | None = None  # factor of the gradients relative to the definition's, if they were compared
    reading: Evidence | None = None  # the evidence with the targets that this loss has, if they are other ones


def list_shares(evidence: Evidence, definition: Definition) -> list[float]:
    """Return the weight of one target of each piece of the step."""
    counts = evidence.count_targets(definition.shift, definition.every, definition.sliced)
    shares = evidence.list_shares(definition.normalisation, counts)
    if definition.weights:
        shares = [share * weight for share, weight in zip(shares, definition.weights, strict=True)]
    if definition.batch < 0:
        return shares
    return [
        share if piece.call.batch == definition.batch else 0.0
        for share, piece in zip(shares, evidence.step.pieces, strict=True)
    ]


def compute_loss(evidence: Evidence, definition: Definition) -> float:
    """Return the loss of the step with a definition: in nats per token, if it is a mean of −log p."""
    if definition.value is not None:
        return definition.value
    parts = definition.list_parts(evidence.step.layout.size)
    return sum(_compute_part(evidence, part) for part in parts) / len(parts)


def _compute_part(evidence: Evidence, definition: Definition) -> float:
    sums = evidence.sum_nll(definition.shift, definition.every, definition.sliced)
    return sum(share * nll for share, nll in zip(list_shares(evidence, definition), sums, strict=True))


def compute_gradients(evidence: Evidence, definition: Definition) -> dict[str, Tensor]:
    """Return the gradients of the step with a definition."""
    parts = definition.list_parts(evidence.step.layout.size)
    total: dict[str, Tensor] = {}
    for part in parts:
        gradients = evidence.sum_gradients(list_shares(evidence, part), part.shift, part.every, sliced=part.sliced)
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0.0) + gradient / len(parts)
    return total


def computed_once(function: Callable[[Evidence, Definition], Answer]) -> Callable[[Evidence, Definition], Answer]:
    """Return a function that keeps its answers with the evidence: gradients of many experts are slow to compare."""

    @functools.wraps(function)
    def call(evidence: Evidence, definition: Definition) -> Answer:
        key = (function.__name__, definition)
        if key not in evidence.computed:
            evidence.computed[key] = function(evidence, definition)
        answer: Answer = evidence.computed[key]
        return answer

    return call


@computed_once
def fit_gradients(evidence: Evidence, definition: Definition) -> Fit | None:
    """Compare the gradients of the step with a definition's; None if they were not recorded."""
    expected = compute_gradients(evidence, definition)
    actual = {name: evidence.observed_gradients[name] for name in expected if name in evidence.observed_gradients}
    expected = {name: expected[name] for name in actual}
    square = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    if not square:
        return None
    product = sum(float((actual[name].double() * expected[name].double()).sum()) for name in expected)
    scale = product / square
    return Fit(gradient_error(actual, {name: gradient * scale for name, gradient in expected.items()}), scale)


def fit_weights(evidence: Evidence, definition: Definition) -> WeightFit | None:
    """Return the weights of the pieces that the step's gradients show; None if they were not recorded.

    Each is in the unit of `Definition.weights`: a factor on the normalisation's weight of the piece.
    """
    gradients = evidence.list_gradients(definition.shift, definition.every)
    names = [name for name in evidence.observed_gradients if any(name in own for own in gradients)]
    shares = list_shares(evidence, replace(definition, weights=()))
    if not names or not any(shares):
        return None
    actual = torch.cat([evidence.observed_gradients[name].double().flatten() for name in names])
    columns = [
        torch.cat([_flatten(own.get(name), evidence.observed_gradients[name]) * share for name in names])
        for own, share in zip(gradients, shares, strict=True)
    ]
    matrix = torch.stack(columns, dim=1)
    weights = torch.linalg.lstsq(matrix, actual[:, None], driver="gelsd").solution[:, 0]
    error = float((matrix @ weights - actual).norm()) / max(float(actual.norm()), 1e-30)
    return WeightFit(error, tuple(weights.tolist()))


def _flatten(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros(like.numel(), dtype=torch.float64) if gradient is None else gradient.double().flatten()


@computed_once
def gradient_limit(evidence: Evidence, definition: Definition) -> float:
    """Return the largest allowed relative error of the gradients: several times their rounding error."""
    if evidence.rounded is None:
        return FP32_GRADIENT_LIMIT
    shares = list_shares(evidence, definition)
    rounded, exact = evidence.sum_gradients(shares, rounded=True), evidence.sum_gradients(shares)
    return max(FP32_GRADIENT_LIMIT, ROUNDING_MULTIPLE * gradient_error(rounded, exact))


def is_near(value: float, observed: float, limit: float) -> bool:
    """Return whether a loss equals the observed one within a relative error."""
    return abs(value - observed) <= limit * abs(observed)


def list_factors(evidence: Evidence) -> dict[str, float]:
    """Return the possible factors on a loss that is too large, each with its cause."""
    batches, sharing = evidence.batches, evidence.step.layout.size
    ranks = len(evidence.step.ranks) // sharing
    factors = {
        "too large by a factor of the sequence-parallel group's size": float(sharing),
        "divided once too often by the size of the sequence-parallel group": 1.0 / sharing,
        ("the sum over the step's batches, not their mean: too large by the number of accumulation steps"): float(
            batches
        ),
        "divided twice by the number of accumulation steps": 1.0 / batches,
        "too large by the number of ranks": float(ranks),
        "divided once too often by the number of ranks": 1.0 / ranks,
        "too large by the number of accumulation steps and of ranks": float(batches * ranks),
    }
    if sharing > 1 and ranks > 1:
        factors["divided by the number of all ranks, including those that share a row"] = 1.0 / (ranks * sharing)
    return factors


def is_scaled(factor: float) -> bool:
    """Return whether a factor is that of a GradScaler: a large power of two, 2**16 at first.

    Smaller ones are numbers of tokens too: a loss of rows of 1024 tokens may be their sum.
    """
    exponent = math.log2(factor) if factor > 0 else 0.0
    return exponent > LEAST_EXPONENT and is_near(2.0 ** round(exponent), factor, SCALE_LIMIT)


def name_factor(evidence: Evidence, factor: float) -> str:
    """Return the possible causes of a factor, "" if none is known."""
    factors = list_factors(evidence)
    return ", or ".join(text for text, value in factors.items() if value != 1.0 and is_near(value, factor, SCALE_LIMIT))
