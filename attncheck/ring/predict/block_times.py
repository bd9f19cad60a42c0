"""The time of a block, fitted to measurements: a launch floor, and operations over a rate that rises with them.

Between two measured sizes the logarithm of the time is linear in the logarithm of the operations. Beyond the largest
size the rate stays constant, and also below the smallest, down to the floor. Backward is the time of both passes minus
the forward.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from attncheck.core.results.prediction import BlockKind, BlockTiming
from attncheck.ring.roofline import Shape

Pass = Literal["forward", "backward"]
# Visible pairs of a block as a share of its squared length.
PAIRS: Mapping[BlockKind, float] = {
    "causal": 0.5,
    "full": 1.0,
    "half_keys": 0.5,
    "half_queries": 0.5,
    "shifted": 0.5,
}
# The block that replaces one without a measurement, and the factor on its time.
STAND_INS: Mapping[BlockKind, tuple[BlockKind, float]] = {
    "half_keys": ("full", 0.5),
    "half_queries": ("full", 0.5),
    "shifted": ("causal", 1.0),
    "full": ("causal", 2.0),
}
LAUNCH_FLOOR_MS = 0.01  # time of a kernel that does nothing
BASE_ERROR = 0.02  # relative error of any block's time: other GPUs of the same model, their clocks and power
ERROR_PER_DOUBLING = 0.03  # added error per doubling of the distance from a measured size, up to `MAX_ERROR`
MAX_ERROR = 0.25
STAND_IN_ERROR = 0.03


@dataclass(frozen=True)
class Block:
    """A piece of attention: its kind, and the floating-point operations of its forward."""

    kind: BlockKind
    operations: float


@dataclass(frozen=True)
class Point:
    """A measured block: operations of its forward, milliseconds, and their relative error."""

    operations: float
    ms: float
    error: float = 0.0


@dataclass(frozen=True)
class BlockTimes:
    """Measured points by kind and pass, sorted by operations; times never fall as operations grow."""

    points: Mapping[tuple[BlockKind, Pass], tuple[Point, ...]]

    def estimate(self, block: Block, direction: Pass) -> tuple[float, float]:
        """Return the milliseconds of a block, and their relative error."""
        points = self.points.get((block.kind, direction))
        if points:
            return _estimate(points, block.operations)
        stand_in, factor = STAND_INS[block.kind]
        share = PAIRS[stand_in] / PAIRS[block.kind]
        ms, error = self.estimate(Block(stand_in, block.operations * share), direction)
        return ms * factor, error + STAND_IN_ERROR


def make_block(kind: BlockKind, shape: Shape, pairs: float, heads: float = 0.0) -> Block:
    """Return a block with `pairs` (query, key) pairs, over all heads or over `heads` of them."""
    return Block(kind, 4.0 * shape.head_dim * (heads or shape.num_heads) * pairs)


def fit_blocks(timings: Iterable[BlockTiming], shape: Shape) -> BlockTimes:
    """Return the fit of the timed blocks of `shape`; the timings carry their lengths."""
    measured = [timing for timing in timings if timing.outcome == "ok" and timing.ms > 0]
    forward_ms = {(timing.kind, timing.seqlen): timing.ms for timing in measured if timing.passes == "forward"}
    points: dict[tuple[BlockKind, Pass], list[Point]] = {}
    for timing in measured:
        operations = make_block(timing.kind, shape, PAIRS[timing.kind] * timing.seqlen**2).operations
        direction: Pass = "forward" if timing.passes == "forward" else "backward"
        ms = timing.ms
        if direction == "backward":
            if (timing.kind, timing.seqlen) not in forward_ms:
                continue
            ms -= forward_ms[timing.kind, timing.seqlen]
        if ms > 0:
            points.setdefault((timing.kind, direction), []).append(Point(operations, ms, timing.interval_ms / ms))
    return BlockTimes({key: _make_rising(series) for key, series in points.items()})


def _make_rising(points: list[Point]) -> tuple[Point, ...]:
    """Return points by operations; a time below a smaller block's is noise, and is raised to that block's time."""
    rising: list[Point] = []
    for point in sorted(points, key=lambda point: point.operations):
        ms = max(point.ms, rising[-1].ms) if rising else point.ms
        rising.append(Point(point.operations, ms, point.error))
    return tuple(rising)


def _estimate(points: tuple[Point, ...], operations: float) -> tuple[float, float]:
    first, last = points[0], points[-1]
    if operations <= first.operations:
        ms = max(first.ms * operations / first.operations, min(LAUNCH_FLOOR_MS, first.ms))
        return ms, _error_away(first, operations)
    if operations >= last.operations:
        return last.ms * operations / last.operations, _error_away(last, operations)
    index = bisect_left([point.operations for point in points], operations)
    before, after = points[index - 1], points[index]
    share = math.log(operations / before.operations) / math.log(after.operations / before.operations)
    ms = before.ms * (after.ms / before.ms) ** share
    nearest = before if share < 0.5 else after
    return ms, _error_away(nearest, operations)


def _error_away(point: Point, operations: float) -> float:
    """Return the relative error of a time extrapolated from `point`; operations grow with the squared length."""
    doublings = abs(math.log2(operations / point.operations)) / 2 if operations > 0 else 0.0
    return min(MAX_ERROR, BASE_ERROR + point.error + ERROR_PER_DOUBLING * doublings)
