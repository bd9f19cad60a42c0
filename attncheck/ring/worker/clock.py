"""Times a call on every rank at once: warmed up, in rounds, until the median is known well enough.

A round is a run of calls between two device events without a barrier in between, which is how ring-flash-attn's own
benchmark times (benchmark/benchmark_kvpacked_func.py); rounds begin together. The slowest rank's time counts, with the
95 % interval of its median (`attncheck.core.results.timings`). Inputs are normal numbers, never zeros, which run
faster; the working set of a ring is far beyond the L2 cache.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from attncheck.core.results.ring_timings import Stopwatch
from attncheck.measure.statistics import half_width

ROUND_MS = 200.0  # of one round, about: long, so that its beginning and end weigh little
MOST_CALLS = 400  # in a round
LEAST_ROUNDS, MOST_ROUNDS = 6, 40
PRECISE = 0.01  # half-width of the interval at which measuring ends
STABLE = 0.03  # two warm-up rounds that differ by less are warm


def timed(call: Callable[[], Any], kind: str, group: Any, seconds: float, cycle: int = 1) -> Stopwatch:
    """Return the time of `call` on all ranks of `group`, which all must time it; no more than `seconds`, about.

    `cycle` calls in a row do different work: a round has a multiple of them.
    """
    _reset_peak(kind)
    before = _allocated(kind)
    for _ in range(3):  # torch.jit compiles after its first calls
        call()
    peak = _peak(kind) - before
    deadline = time.monotonic() + seconds
    once = min(max(_round(call, cycle, kind, group)) for _ in range(2))
    wanted = min(ROUND_MS, 1e3 * seconds / LEAST_ROUNDS) / max(1e-3, once)
    calls = cycle * max(1, round(min(MOST_CALLS, wanted) / cycle))
    _warm(call, calls, kind, group, deadline)
    rounds: list[list[float]] = []
    while len(rounds) < MOST_ROUNDS:
        rounds.append(_round(call, calls, kind, group))
        slow = [max(each) for each in rounds]
        late = _agreed(time.monotonic() > deadline, kind, group)
        if len(rounds) >= LEAST_ROUNDS and (late or half_width(slow) < PRECISE * statistics.median(slow)):
            break
        if late and len(rounds) >= 3:
            break
    return _watch(rounds, calls, _largest(peak, kind, group))


def _warm(call: Callable[[], Any], calls: int, kind: str, group: Any, deadline: float) -> None:
    last = max(_round(call, calls, kind, group))
    for _ in range(3):
        now = max(_round(call, calls, kind, group))
        if abs(now - last) < STABLE * last or _agreed(time.monotonic() > deadline, kind, group):
            return
        last = now


def _watch(rounds: list[list[float]], calls: int, peak: int) -> Stopwatch:
    slow = sorted(max(each) for each in rounds)
    means = [statistics.median(each) for each in zip(*rounds)]
    low, high = slow[int(0.1 * (len(slow) - 1))], slow[math.ceil(0.9 * (len(slow) - 1))]
    return Stopwatch(
        ms=statistics.median(slow),
        p10_ms=low,
        p90_ms=high,
        interval=half_width(slow) / statistics.median(slow),
        calls=calls * len(rounds),
        slowest_rank=max(range(len(means)), key=lambda rank: means[rank]),
        spread=max(means) / max(min(means), 1e-9),
        peak_memory_bytes=peak,
    )


def _round(call: Callable[[], Any], calls: int, kind: str, group: Any) -> list[float]:
    """Return the milliseconds of one call on every rank."""
    dist.barrier(group)
    if kind == "cuda":
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        spent = begin.elapsed_time(end)
    else:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        spent = 1e3 * (time.perf_counter() - began)
    return _gathered(spent / calls, kind, group)


def _gathered(value: float, kind: str, group: Any) -> list[float]:
    mine = torch.tensor([value], dtype=torch.float64, device=kind)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [float(each) for each in every]


def _agreed(wish: bool, kind: str, group: Any) -> bool:
    """Say whether any rank wishes to end: all must go on or end alike."""
    return max(_gathered(float(wish), kind, group)) > 0


def _largest(value: int, kind: str, group: Any) -> int:
    return int(max(_gathered(float(value), kind, group)))


def _reset_peak(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _allocated(kind: str) -> int:
    return torch.cuda.memory_allocated() if kind == "cuda" else 0


def _peak(kind: str) -> int:
    return torch.cuda.max_memory_allocated() if kind == "cuda" else 0
