"""Finds the norm by which ranks that hold parts of the weights clip: that of all gradients, or a wrong one.

A launch's own clipping hides its limit, but not the factor on the gradients. Factor times norm is the limit, so it is
the same number at every step that is clipped, and only for the norm that was used.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from attncheck.rehearsal.worker.changes import Gradients, compare
from attncheck.rehearsal.worker.records import RankRecord

EQUAL = 1e-5  # relative: the limit at several steps, with norms in float32 (1e-7 was measured)
DIFFERENT = 3 * EQUAL
CLIPPED = 0.999  # a larger factor does not clip


@dataclass(frozen=True)
class ClippedStep:
    """A step's factor on all gradients, and each parameter's squared norms: of each rank's part, or of the whole."""

    factor: float
    squares: Mapping[str, tuple[float, ...]]


def read_before(record: RankRecord) -> Gradients:
    """Return a rank's unclipped gradients: those after the last backward, if they were changed later."""
    return record.backward or record.gradients


def read_stepped(record: RankRecord) -> Gradients:
    """Return the gradients with which a rank's optimisers step."""
    return {name: value for update in record.updates for name, value in update["gradients"].items()}


def read_clipped_step(ranks: Sequence[RankRecord], model: Mapping[str, Tensor]) -> ClippedStep | None:
    """Return a step of ranks that hold parts of weights; None for another step, or without one factor on all."""
    if not ranks:
        return None
    gradients = [read_before(record) for record in ranks]
    names = [name for name in gradients[0] if name in model and all(name in own for own in gradients)]
    parts = {name for name in names if _is_split([own[name] for own in gradients], model[name])}
    change = compare(gradients[0], read_stepped(ranks[0]), names)
    factors = list(change.factors.values())
    if not parts or change.others or not factors or max(factors) - min(factors) > EQUAL * max(factors):
        return None
    squares = {
        name: tuple(float(own[name].double().square().sum()) for own in gradients[: len(ranks) if name in parts else 1])
        for name in names
    }
    return ClippedStep(change.usual, squares)


def _is_split(parts: Sequence[Tensor], whole: Tensor) -> bool:
    """Return whether ranks hold parts of a weight; a script may have given it another number of rows."""
    return parts[0].numel() < whole.numel() and sum(part.numel() for part in parts) % whole.numel() == 0


def find_wrong_norm(steps: Sequence[ClippedStep]) -> Iterator[str]:
    """Yield a line if the steps are clipped by a norm that counts some gradients wrongly."""
    clipped = [step for step in steps if step.factor < CLIPPED]
    if len(clipped) < 2 or _spread(clipped, {}) <= DIFFERENT:
        return
    errors = [(_spread(clipped, weights), text, weights) for text, weights in _list_wrong_weights(clipped[0].squares)]
    error, text, weights = min(errors, key=lambda item: item[0])
    if error <= EQUAL:
        limit = clipped[0].factor * _measure(clipped[0].squares, weights)
        yield f"gradients are clipped to a norm of {limit:.4g} that {text}"


def _list_wrong_weights(squares: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, dict[str, Sequence[float]]]]:
    """Yield wrong weights of the parts of parameters, with their meaning: of all split or whole ones, or of a kind."""
    ranks = max(len(parts) for parts in squares.values())
    kinds: dict[str, list[str]] = {
        "the parameters that every rank has whole": [name for name, parts in squares.items() if len(parts) == 1],
        "the parameters of which ranks hold parts": [name for name, parts in squares.items() if len(parts) > 1],
    }
    for name in squares:
        kinds.setdefault(".".join(part for part in name.split(".") if not part.isdecimal()), []).append(name)
    for kind, names in kinds.items():
        is_split = any(len(squares[name]) > 1 for name in names)
        wrong = {f"leaves out {kind}": [0.0] * ranks, f"counts {kind} {ranks} times": [float(ranks)] * ranks}
        for rank in range(ranks if is_split else 0):
            wrong[f"counts {kind} of rank {rank} only"] = [float(own == rank) for own in range(ranks)]
        for text, weights in wrong.items():
            yield text, dict.fromkeys(names, weights)


def _measure(squares: Mapping[str, Sequence[float]], weights: Mapping[str, Sequence[float]]) -> float:
    return math.sqrt(
        sum(
            square * weight
            for name, parts in squares.items()
            for square, weight in zip(parts, weights.get(name, itertools.repeat(1.0)))
        )
    )


def _spread(steps: Sequence[ClippedStep], weights: Mapping[str, Sequence[float]]) -> float:
    """Return how far the limits of several steps are apart, relative, if parts have these weights."""
    limits = [step.factor * _measure(step.squares, weights) for step in steps]
    return max(limits) / min(limits) - 1.0 if min(limits) else math.inf
