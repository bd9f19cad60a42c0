"""Times a call honestly: warm until it settles, a device event around each call, repeats until the median is known.

On a GPU every call lies between two CUDA events, and calls are launched without waiting for one another, as a training
step launches its layers. Where a case fits into the L2 cache, the cache is emptied between calls, as triton's
`testing.do_bench` does; a larger one empties it by itself. On the CPU the wall clock is read around each call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attncheck.measure.statistics import half_width, quantile

PRECISION = 0.01  # half-width of the 95 % confidence interval of the median, as a share of it
SETTLED = 0.02  # between the medians of two rounds of warm-up
ROUND_MS = {"cuda": 60.0, "cpu": 100.0}  # what one round of calls should take
FEWEST = 10  # calls; six are the fewest that have a 95 % interval
MOST = 2000
LAUNCHES = 5  # calls of a round by which launching is timed: later ones may wait for room in the driver's queue
ROUNDS = 3  # of warm-up at least: the first holds what is only done once


@dataclass(frozen=True)
class Budget:
    """Seconds for warming up and for measuring."""

    warm_up: float
    measuring: float


BUDGETS = {"cuda": Budget(3.0, 4.0), "cpu": Budget(4.0, 8.0)}


@dataclass(frozen=True)
class Measured:
    """The times of one call after another, in milliseconds."""

    times: tuple[float, ...]
    host_ms: float  # median that the host took to launch one; 0: the host computes itself
    settled: bool
    flushed: bool

    @property
    def median(self) -> float:
        """The median."""
        return quantile(self.times, 0.5)

    @property
    def precise(self) -> bool:
        """Whether the median is known as well as was asked for."""
        return len(self.times) >= FEWEST and half_width(self.times) <= PRECISION * self.median


def measure(call: Callable[[], object], kind: str, budget: Budget, working_set: int = 0) -> Measured:
    """Return the times of `call` on a device of `kind`; `working_set` is the bytes that it reads and writes."""
    stopwatch = Stopwatch(call, kind, working_set)
    count, settled = _warm(stopwatch, kind, budget.warm_up)
    times: list[float] = []
    host: list[float] = []
    until = time.monotonic() + budget.measuring
    while True:
        taken, launched = stopwatch.round(min(count, MOST - len(times)))
        times += taken
        host.append(launched)
        found = Measured(tuple(times), statistics.median(host), settled, stopwatch.flushed)
        if found.precise or len(times) >= MOST or time.monotonic() > until:
            return found


def _warm(stopwatch: Stopwatch, kind: str, seconds: float) -> tuple[int, bool]:
    """Call until two rounds take the same. Return how many calls make a round, and whether that came to be."""
    until = time.monotonic() + seconds
    medians: list[float] = []
    count = 1
    while True:
        medians.append(statistics.median(stopwatch.round(count)[0]))
        count = max(1, min(MOST // 10, round(ROUND_MS[kind] / max(medians[-1], 1e-3))))
        if len(medians) >= ROUNDS and abs(medians[-1] - medians[-2]) <= SETTLED * medians[-2]:
            return count, True
        if time.monotonic() > until:
            return count, False


class Stopwatch:
    """Times rounds of one call."""

    def __init__(self, call: Callable[[], object], kind: str, working_set: int) -> None:
        self._call, self._cuda = call, kind == "cuda"
        self._sweeper = _sweeper(working_set) if self._cuda else None

    @property
    def flushed(self) -> bool:
        """Whether the L2 cache is emptied before each call."""
        return self._sweeper is not None

    def round(self, count: int) -> tuple[list[float], float]:
        """Return the milliseconds of `count` calls, and what the host took to launch one (0: it computes itself)."""
        if not self._cuda:
            return [self._by_wall_clock() for _ in range(count)], 0.0
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
        torch.cuda.synchronize()
        host = []
        for first, last in events:
            if self._sweeper is not None:
                self._sweeper.zero_()
            began = time.perf_counter()
            first.record()
            self._call()
            last.record()
            host.append(1e3 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        return [first.elapsed_time(last) for first, last in events], statistics.median(host[:LAUNCHES])

    def _by_wall_clock(self) -> float:
        began = time.perf_counter()
        self._call()
        return 1e3 * (time.perf_counter() - began)


def _sweeper(working_set: int) -> torch.Tensor | None:
    """Return what is written to empty the L2 cache, None where a call of this size leaves nothing in it."""
    size = l2_bytes()
    return torch.empty(2 * size, dtype=torch.int8, device="cuda") if 0 < working_set < size else None


def l2_bytes() -> int:
    """Return the size of the GPU's L2 cache, 0 where torch does not tell (before 2.2)."""
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
