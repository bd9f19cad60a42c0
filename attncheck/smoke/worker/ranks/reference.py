"""What one process makes of the ranks' documents, and how far from it the ranks are.

The reference runs one document at a time, in float32 and eager; the same in the plan's precision tells what rounding
alone makes of each number. Neither uses the plan's implementation, which is over ranks by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from attncheck.core.results.smoke import Measure
from attncheck.smoke.worker.ranks.loss_shares import finite, losses
from attncheck.smoke.worker.ranks.sharded import Row, Step
from attncheck.smoke.worker.testbed import EXACT, FLOORS, TINY, Bed, Result, apart, norm, relative

NORM = 0.01  # how far the ratio of gradient norms may be from 1 (numerics §5)
SMALL = 0.01  # of the whole gradient's norm: a parameter's smaller gradient is measured by that


@dataclass(frozen=True)
class Single:
    """What one process makes of documents, row after row: exactly, and in the plan's precision."""

    exact: Result
    rounded: Result
    limit_of: float  # what rounding is multiplied by; 0: float32, which has a limit of its own

    def limit(self, floor: float) -> float:
        """Return how far off a number may be that rounding alone moves by `floor`."""
        return self.limit_of * floor if self.limit_of else EXACT

    def logits(self) -> tuple[float, float]:
        """Return the error that rounding makes of all logits, and the limit on that of the ranks."""
        floor = relative(self.rounded.logits, self.exact.logits)
        return floor, self.limit(floor)


def single(bed: Bed, rows: Sequence[Sequence[Tensor]]) -> Single:
    """Return both runs of one process."""
    documents = [document for each in rows for document in each]
    plan = replace(bed.plan, precision="fp32")
    exact = bed.alone(bed.model(plan, "eager"), documents, plan)
    rounded = bed.alone(bed.model(implementation="eager"), documents)
    return Single(exact, rounded, 0.0 if bed.plan.precision == "fp32" else FLOORS)


def measures(made: Step, rows: Sequence[Row], one: Single) -> Iterator[Measure]:
    """Yield logits, loss and gradients over ranks against one process; the logits of all documents come first."""
    exact, rounded = one.exact, one.rounded
    seen = [part for logits, each in zip(made.seen, rows) for part in _documents(logits, each)]
    yield Measure("logits", relative(seen, exact.logits), one.logits()[1])
    yield _worst_document(seen, rows, one, len(made.weights))
    floor = _log_prob_error(one, rows) / exact.loss
    yield Measure("loss", finite(abs(made.loss / exact.loss - 1)), one.limit(floor))
    total = norm(exact.gradients)
    yield Measure("gradient norm", finite(abs(norm(made.gradients) / max(total, TINY) - 1)), NORM)
    floor = apart(rounded.gradients, exact.gradients)
    yield Measure("gradients", apart(made.gradients, exact.gradients), one.limit(floor))
    yield _worst_parameter(made, one, total, floor)


def _documents(logits: Tensor, each: Row) -> list[Tensor]:
    return [logits[start:stop] for start, stop in pairwise(each.edges)]


def _worst_document(seen: Sequence[Tensor], rows: Sequence[Row], one: Single, ranks: int) -> Measure:
    """Return the document whose logits are farthest beyond what rounding makes of them."""
    found = []
    for index, wanted in enumerate(one.exact.logits):
        own = relative([one.rounded.logits[index]], [wanted])
        limit = one.limit(max(own, one.logits()[0]))
        error = relative([seen[index]], [wanted])
        found.append(Measure("one document's logits", error, limit, _where(index, rows, ranks)))
    return max(found, key=lambda measure: measure.budget_ratio)


def _where(index: int, rows: Sequence[Row], ranks: int) -> str:
    """Return which document is meant, counted over all rows, and the ranks that hold it."""
    number = 0
    while index >= len(rows[number].edges) - 1:
        index -= len(rows[number].edges) - 1
        number += 1
    edges = rows[number].edges
    size = -(-rows[number].total // ranks)
    first, last = edges[index] // size, (edges[index + 1] - 1) // size
    held = f"rank {first}" if first == last else f"ranks {first} to {last}"
    return f"document {index + 1} of row {number + 1}, on {held}"


def _worst_parameter(made: Step, one: Single, total: float, floor: float) -> Measure:
    """Return the parameter whose gradient is farthest beyond what rounding makes of it."""
    found = []
    for name, wanted in one.exact.gradients.items():
        size = max(float(wanted.norm()), SMALL * total, TINY)
        got = made.gradients.get(name, torch.zeros_like(wanted))
        own = float((one.rounded.gradients.get(name, wanted) - wanted).norm()) / size
        error = finite(float((got - wanted).norm()) / size)
        found.append(Measure("one parameter's gradient", error, one.limit(max(own, floor)), f"in {name}"))
    return max(found, key=lambda measure: measure.budget_ratio)


def _log_prob_error(one: Single, rows: Sequence[Row]) -> float:
    """Return the rms error that rounding makes of a token's log-probability: more than it makes of their mean."""
    wanted = torch.cat([each.wanted for each in rows])
    rounded, exact = (losses(torch.cat(run.logits), wanted) for run in (one.rounded, one.exact))
    return float((rounded - exact)[wanted >= 0].square().mean().sqrt())
