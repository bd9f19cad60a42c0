"""Times a call: warm-up until it settles, a device event around each call, repeats until the median is precise.

On a GPU every call is between two CUDA events, and calls are launched without waiting for one another, as a training
step launches its layers. If a case fits into the L2 cache, the cache is emptied between calls, as triton's
`testing.do_bench` does; a larger case empties it anyway. On the CPU the wall clock is read around each call.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attncheck.measure.statistics import half_width, quantile

PRECISION = 0.01  # relative half-width of the median's 95 % confidence interval at which measuring ends
SETTLED_CHANGE = 0.02  # relative difference of two warm-up rounds' medians that counts as settled
ROUND_MS = {"cuda": 60.0, "cpu": 100.0}  # intended duration of one round of calls
MIN_CALLS = 10  # at least six are needed for a 95 % interval
MAX_CALLS = 2000
TIMED_LAUNCHES = 5  # calls per round that time launching; later ones may wait for room in the driver's queue
MIN_WARM_UP_ROUNDS = 3  # the first one includes work that is done only once


ROUNDS_PER_BUDGET = 5  # at least this many rounds fit into the measuring time


@dataclass(frozen=True)
class Budget:
    """Maximum seconds for warming up and for measuring; both end as soon as possible."""

    warm_up: float
    measuring: float


# Warm-up may take as long as measuring. A case that has not settled by then is measured anyway, and marked.
BUDGETS = {"cuda": Budget(1.0, 2.0), "cpu": Budget(2.0, 4.0)}


@dataclass(frozen=True)
class CallTimes:
    """The times of one call after another, in milliseconds."""

    times_ms: tuple[float, ...]
    host_ms: float  # median host time to launch a call; 0 if the host computes itself
    settled: bool  # whether the last two warm-up rounds took the same time
    flushed: bool  # whether the L2 cache was emptied before each call

    @property
    def median_ms(self) -> float:
        """Median of the times, in milliseconds."""
        return quantile(self.times_ms, 0.5)

    @property
    def is_precise(self) -> bool:
        """Whether the median's confidence interval is at most as wide as `PRECISION` allows."""
        return len(self.times_ms) >= MIN_CALLS and half_width(self.times_ms) <= PRECISION * self.median_ms


def time_calls(call: Callable[[], object], kind: str, budget: Budget, working_set: int = 0) -> CallTimes:
    """Return the times of `call` on a device of `kind`; `working_set` is the bytes that it reads and writes."""
    timer = CallTimer(call, kind, working_set)
    round_ms = min(ROUND_MS[kind], 1e3 * budget.measuring / ROUNDS_PER_BUDGET)
    count, settled = _warm_up(timer, round_ms, budget.warm_up)
    times_ms: list[float] = []
    launch_ms: list[float] = []
    deadline = time.monotonic() + budget.measuring
    while True:
        more_ms, round_launch_ms = timer.time_round(min(count, MAX_CALLS - len(times_ms)))
        times_ms += more_ms
        launch_ms.append(round_launch_ms)
        call_times = CallTimes(tuple(times_ms), statistics.median(launch_ms), settled, timer.flushes_cache)
        if call_times.is_precise or len(times_ms) >= MAX_CALLS or time.monotonic() > deadline:
            return call_times


def _warm_up(timer: "CallTimer", round_ms: float, seconds: float) -> tuple[int, bool]:
    """Call until two rounds take the same time. Return the number of calls per round, and whether it settled."""
    deadline = time.monotonic() + seconds
    medians: list[float] = []
    count = 1
    while True:
        medians.append(statistics.median(timer.time_round(count)[0]))
        count = max(1, min(MAX_CALLS // 10, round(round_ms / max(medians[-1], 1e-3))))
        if len(medians) >= MIN_WARM_UP_ROUNDS and abs(medians[-1] - medians[-2]) <= SETTLED_CHANGE * medians[-2]:
            return count, True
        if time.monotonic() > deadline:
            return count, False


class CallTimer:
    """Times rounds of calls of one function."""

    def __init__(self, call: Callable[[], object], kind: str, working_set: int) -> None:
        self._call, self._cuda = call, kind == "cuda"
        self._flush_buffer = _make_flush_buffer(working_set) if self._cuda else None

    @property
    def flushes_cache(self) -> bool:
        """Whether the L2 cache is emptied before each call."""
        return self._flush_buffer is not None

    def time_round(self, count: int) -> tuple[list[float], float]:
        """Return the milliseconds of `count` calls, and of one launch on the host (0 if the host computes)."""
        if not self._cuda:
            return [self._time_on_host() for _ in range(count)], 0.0
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
        torch.cuda.synchronize()
        launch_ms = []
        for first, last in events:
            if self._flush_buffer is not None:
                self._flush_buffer.zero_()
            began = time.perf_counter()
            first.record()
            self._call()
            last.record()
            launch_ms.append(1e3 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        return [first.elapsed_time(last) for first, last in events], statistics.median(launch_ms[:TIMED_LAUNCHES])

    def _time_on_host(self) -> float:
        began = time.perf_counter()
        self._call()
        return 1e3 * (time.perf_counter() - began)


def _make_flush_buffer(working_set: int) -> torch.Tensor | None:
    """Return the buffer to overwrite to empty the L2 cache, None if a call's working set fills it anyway."""
    size = l2_bytes()
    return torch.empty(2 * size, dtype=torch.int8, device="cuda") if 0 < working_set < size else None


def l2_bytes() -> int:
    """Return the size of the GPU's L2 cache in bytes, 0 if torch does not report it (before 2.2)."""
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
