"""Detects how other code changes gradients between the last backward and the optimiser's step.

Noise in all gradients, or smaller gradients of some parameters, may be intended: gradient noise, adaptive clipping,
learning rates per layer. Gradients that are zeroed, reversed or enlarged, and a few that differ, are faults.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

GRADIENT_LIMIT = {torch.float32: 1e-3}  # relative error of a gradient
ROUNDED_LIMIT = 2e-2  # for a gradient in another dtype
MOST = 0.5  # share of the parameters: a change of direction of this many is intended
NAMED = 3  # the most parameters in a message

Gradients = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """How gradients changed: each parameter's factor, and the parameters for which it is not just a factor."""

    factors: Mapping[str, float]
    others: tuple[str, ...] = ()

    @property
    def usual(self) -> float:
        """The factor of most parameters; 1 if none is known."""
        return median(self.factors.values()) if self.factors else 1.0

    @property
    def is_smaller(self) -> bool:
        """Whether no gradient is zeroed, reversed or larger than before."""
        return all(0 < factor <= 1 + ROUNDED_LIMIT for factor in self.factors.values())


def name(parameters: Sequence[str]) -> str:
    """Return the first few names of parameters."""
    return f"{', '.join(parameters[:NAMED])}{' and others' if len(parameters) > NAMED else ''}"


def compare(before: Gradients, after: Gradients, held: Collection[str]) -> Change:
    """Return how the gradients of the `held` parameters changed; a missing one counts as 0.

    Parameters without a gradient, or with one that is not finite, are left out.
    """
    factors: dict[str, float] = {}
    others: list[str] = []
    for parameter, value in before.items():
        if parameter not in held or not bool(value.any()) or not torch.isfinite(value).all():
            continue
        actual = after.get(parameter)
        actual = torch.zeros_like(value) if actual is None else actual
        if not isinstance(actual, Tensor) or actual.shape != value.shape:
            continue
        limit = GRADIENT_LIMIT.get(actual.dtype, ROUNDED_LIMIT)
        old, new = value.double(), actual.double()
        factor = float((old * new).sum() / old.square().sum())
        factors[parameter] = factor
        if float((new - factor * old).norm() / old.norm()) > limit * max(abs(factor), 1e-6) + 1e-9:
            others.append(parameter)
    return Change(factors, tuple(others))


def judge_change(change: Change, place: str) -> tuple[list[str], list[str]]:
    """Return a change's faults and its possibly intended effects; neither for one factor on all parameters."""
    total = len(change.factors)
    if change.others:
        text = f"the gradients of {len(change.others)} of {total} parameters are changed {place}"
        is_meant = len(change.others) > MOST * total
        return ([], [f"{text}, for an unknown reason"]) if is_meant else ([f"{text}: {name(change.others)}"], [])
    usual = change.usual
    wrong = [p for p, factor in change.factors.items() if abs(factor - usual) > ROUNDED_LIMIT * max(abs(usual), 1e-6)]
    if not wrong:
        return [], []
    text = f"the gradients of {len(wrong)} of {total} parameters are"
    if all(abs(change.factors[parameter]) < 1e-9 for parameter in wrong):
        return [f"{text} zeroed {place}: {name(wrong)}"], []
    times = change.factors[wrong[0]] / usual if usual else 0.0
    text = f"{text} multiplied by {times:.4g} {place}: {name(wrong)}"
    return ([], [text]) if change.is_smaller else ([text], [])
