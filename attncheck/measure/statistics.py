"""The median of measured times, its confidence interval, and quantiles."""

import math
from collections.abc import Sequence

CONFIDENCE = 0.95


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of `times`, as two of them, for any distribution.

    The number of times below the median is binomial, so the l-th smallest and the l-th largest enclose it with 1 − 2
    P(fewer than l below) (Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems, SC15, section
    3.1.3; Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010). Fewer than six times have no
    such interval; the returned one then contains all of them.
    """
    ordered = sorted(times)
    count = len(ordered)
    low = _count_outside(count)
    return ordered[low], ordered[count - 1 - low]


def _count_outside(count: int) -> int:
    """Return how many of `count` times, at each end, are outside the interval."""
    if count >= 1000:  # the normal approximation is good enough
        return math.floor((count - 1.96 * math.sqrt(count)) / 2.0) - 1
    allowed = (1.0 - CONFIDENCE) / 2.0 * 2.0**count
    low = below = 0
    while below + math.comb(count, low) <= allowed:
        below += math.comb(count, low)
        low += 1
    return max(0, low - 1)


def quantile(times: Sequence[float], share: float) -> float:
    """Return the value below which a `share` of `times` lies, between neighbours by proportion."""
    ordered = sorted(times)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def half_width(times: Sequence[float]) -> float:
    """Return the error of the median of `times`: the longer side of its 95 % confidence interval."""
    low, high = median_interval(times)
    middle = quantile(times, 0.5)
    return max(high - middle, middle - low)
