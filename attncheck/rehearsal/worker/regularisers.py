"""Finds the regulariser that a script adds to its loss: a factor times the mean of a known function of the logits.

The gradients of the step decide: they are those of the mean plus a factor times those of the function, and the loss has
the value of that sum. A KL term to the model itself has neither value nor gradient at the first step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attncheck.rehearsal.worker.definitions import SCALE_LIMIT, Definition, compute_gradients, compute_loss, is_near
from attncheck.rehearsal.worker.evidence import Evidence

# Functions of logits (tokens, vocabulary) whose mean over the same tokens is added. Labels smoothed by e: (1 - e) times
# the mean and e times the last one.
SMOOTHING = "label smoothing: the mean of -log p over the vocabulary"
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "a z-loss: the square of log Z": lambda logits: logits.logsumexp(-1).square(),
    "the entropy": lambda logits: -(logits.log_softmax(-1).exp() * logits.log_softmax(-1)).sum(-1),
    SMOOTHING: lambda logits: -logits.log_softmax(-1).mean(-1),
}


@dataclass(frozen=True)
class Regularised:
    """A loss: `text` in words, its value, and the error of the step's gradients relative to its own."""

    text: str
    value: float
    error: float


def find_regulariser(evidence: Evidence, means: list[Definition], slack: float, limit: float) -> Regularised | None:
    """Return the mean and the regulariser that explain the step's loss and gradients; None if none does."""
    gradients = [(mean, compute_gradients(evidence, mean)) for mean in means]
    for every in (False, True):
        for name, function in FUNCTIONS.items():
            parts = _differentiate(evidence, function, every)
            for mean, first in gradients:
                loss = _fit(evidence, mean, first, name, parts, every)
                if loss is not None and loss.error <= slack and is_near(loss.value, evidence.observed_loss, limit):
                    return loss
    return None


def _differentiate(
    evidence: Evidence, function: Callable[[Tensor], Tensor], every: bool
) -> list[tuple[float, dict[str, Tensor]]]:
    """Return the sum of a function over the targets of each piece of the step, and its gradients."""
    return [
        evidence.truth.differentiate(piece.tokens, piece.shift_labels(1, every)[1].float(), function)
        for piece in evidence.step.pieces
    ]


def _fit(
    evidence: Evidence,
    mean: Definition,
    first: Mapping[str, Tensor],
    name: str,
    parts: list[tuple[float, dict[str, Tensor]]],
    every: bool,
) -> Regularised | None:
    """Return the factors of a mean and a function that fit the step's gradients best; `first` has those of the mean."""
    shares = evidence.list_shares(mean.normalisation, evidence.count_targets(1, every))
    names = [own for own in evidence.observed_gradients if own in first and all(own in part for _, part in parts)]
    if not names:
        return None
    second = {own: torch.stack([share * part[own] for share, (_, part) in zip(shares, parts)]).sum(0) for own in names}
    given = (first, second, evidence.observed_gradients)
    rows = [torch.cat([gradients[own].double().flatten() for own in names]) for gradients in given]
    products = torch.tensor([[float(row @ other) for other in rows] for row in rows], dtype=torch.float64)
    solution = torch.linalg.lstsq(products[:2, :2], products[:2, 2:], driver="gelsd").solution[:, 0]
    weight, factor = solution.tolist()
    left = products[2, 2] - 2 * solution @ products[:2, 2] + solution @ products[:2, :2] @ solution
    error = float((left.clamp_min(0.0) / products[2, 2].clamp_min(1e-30)).sqrt())
    value = weight * compute_loss(evidence, mean) + factor * sum(share * own for share, (own, _) in zip(shares, parts))
    kept = weight + factor if name == SMOOTHING else weight
    if abs(kept - 1.0) > max(SCALE_LIMIT, error):
        return None
    tokens = ", over every token" if every else ""
    return Regularised(f"{mean.text}, and {factor:.3g} times {name}{tokens}", value, error)
