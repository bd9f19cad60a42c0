"""How errors grow with the ring: the same problem on 1, 2, 4, … ranks, and the slope of its error per doubling.

ring-flash-attn's README only says "There are some arithmetic errors". Merged 16-bit blocks legitimately cost a factor
of 1.25 for any number of ranks, and sums in the io dtype a factor that grows with it. The class factor contains both,
so the remaining error should not grow.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attncheck.core.lists import group_values
from attncheck.core.verdicts import Run

FAMILY = "growth"
MAX_SLOPE = 0.25  # log2 of the error per doubling, beyond what the class factor allows: a fifth more error each time


@dataclass(frozen=True)
class Growth:
    """One backend's error on the same problem at several ring sizes, its worst tensor first.

    `z_rms` has the error at each of `ring_sizes` in units of an ideal single kernel's noise. `slope` is the increase of
    its base-2 logarithm per doubling of the ring, from two ranks upwards. `beyond` is the same after division by the
    class factor: above 0.25 is a warning.
    """

    backend: str
    layout: str
    tensor: str
    ring_sizes: tuple[int, ...]
    z_rms: tuple[float, ...]
    slope: float
    beyond: float


def error_growths(runs: Iterable[Run]) -> tuple[Growth, ...]:
    """Return the growth of every backend that was measured at two ring sizes of two ranks or more."""
    runs_by_series = group_values(
        ((run.backend, run.case.layout), run)
        for run in runs
        if run.case.family == FAMILY and run.outcome == "ok" and run.scores
    )
    return tuple(growth for group in runs_by_series.values() for growth in _worst_growth(group))


def _worst_growth(runs: list[Run]) -> Iterator[Growth]:
    runs = sorted(runs, key=lambda run: run.case.context_parallel_size)
    tensors = {score.tensor for run in runs for score in run.scores if score.tensor != "lse"}
    growths = [growth for tensor in sorted(tensors) if (growth := _measure_growth(tensor, runs)) is not None]
    if growths:
        yield max(growths, key=lambda growth: growth.beyond)


def _measure_growth(tensor: str, runs: list[Run]) -> Growth | None:
    points = [(run, score.z_rms) for run in runs for score in run.scores if score.tensor == tensor and score.z_rms > 0]
    ring_points = [(run, z) for run, z in points if run.case.context_parallel_size > 1]
    if len({run.case.context_parallel_size for run, _ in ring_points}) < 2:
        return None
    sizes = [math.log2(run.case.context_parallel_size) for run, _ in ring_points]
    run, _ = points[0]
    return Growth(
        run.backend,
        run.case.layout,
        tensor,
        tuple(run.case.context_parallel_size for run, _ in points),
        tuple(round(z, 4) for _, z in points),
        round(_least_squares_slope(sizes, [math.log2(z) for _, z in ring_points]), 4),
        round(_least_squares_slope(sizes, [math.log2(z / run.class_factor) for run, z in ring_points]), 4),
    )


def _least_squares_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line."""
    middle = sum(x) / len(x)
    spread = sum((value - middle) ** 2 for value in x)
    return sum((a - middle) * b for a, b in zip(x, y)) / spread


def describe_growth(growth: Growth) -> str:
    """Return a growth in words."""
    values = ", ".join(f"{z:.2f} on {n}" for n, z in zip(growth.ring_sizes, growth.z_rms))
    return f"{growth.tensor}: z_rms {values}; ×{2**growth.slope:.2f} per doubling of the ring"
