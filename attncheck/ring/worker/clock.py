"""Times a call on every rank at once: warm-up, then rounds until the median is known precisely enough.

A round is a series of calls between two device events, without a barrier in between, as in ring-flash-attn's own
benchmark (benchmark/benchmark_kvpacked_func.py). Rounds begin together. The slowest rank's time counts, with the 95 %
interval of its median (`attncheck.core.results.timings`). Inputs are normal numbers, never zeros, which run faster. A
ring's working set is far larger than the L2 cache.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from attncheck.core.results.ring_timings import Stopwatch
from attncheck.measure.statistics import half_width

ROUND_MS = 200.0  # approximate length of one round, so that its beginning and end weigh little
MAX_CALLS = 400  # per round
MIN_ROUNDS, MAX_ROUNDS = 6, 40
PRECISION = 0.01  # measuring ends at this half-width of the interval
WARM_TOLERANCE = 0.03  # warm-up ends after two rounds that differ by less


def time_call(call: Callable[[], Any], kind: str, group: Any, seconds: float, cycle: int = 1) -> Stopwatch:
    """Return the time of `call`, which all ranks of `group` must time together; takes at most about `seconds`.

    `cycle` consecutive calls do different work: a round has a multiple of them.
    """
    _reset_peak_memory(kind)
    allocated = torch.cuda.memory_allocated() if kind == "cuda" else 0
    for _ in range(3):  # torch.jit compiles after its first calls
        call()
    peak = (torch.cuda.max_memory_allocated() if kind == "cuda" else 0) - allocated
    deadline = time.monotonic() + seconds
    single_ms = min(max(_time_round(call, cycle, kind, group)) for _ in range(2))
    calls_per_round = min(ROUND_MS, 1e3 * seconds / MIN_ROUNDS) / max(1e-3, single_ms)
    calls = cycle * max(1, round(min(MAX_CALLS, calls_per_round) / cycle))
    _warm_up(call, calls, kind, group, deadline)
    rounds: list[list[float]] = []
    while len(rounds) < MAX_ROUNDS:
        rounds.append(_time_round(call, calls, kind, group))
        slowest = [max(ranks_ms) for ranks_ms in rounds]
        out_of_time = _any_rank(time.monotonic() > deadline, kind, group)
        if len(rounds) >= MIN_ROUNDS and (out_of_time or half_width(slowest) < PRECISION * statistics.median(slowest)):
            break
        if out_of_time and len(rounds) >= 3:
            break
    return _summarize_rounds(rounds, calls, int(max(_all_gather_value(float(peak), kind, group))))


def _warm_up(call: Callable[[], Any], calls: int, kind: str, group: Any, deadline: float) -> None:
    previous = max(_time_round(call, calls, kind, group))
    for _ in range(3):
        current = max(_time_round(call, calls, kind, group))
        if abs(current - previous) < WARM_TOLERANCE * previous or _any_rank(time.monotonic() > deadline, kind, group):
            return
        previous = current


def _summarize_rounds(rounds: list[list[float]], calls: int, peak: int) -> Stopwatch:
    slowest = sorted(max(ranks_ms) for ranks_ms in rounds)
    medians = [statistics.median(rank_ms) for rank_ms in zip(*rounds)]
    low, high = slowest[int(0.1 * (len(slowest) - 1))], slowest[math.ceil(0.9 * (len(slowest) - 1))]
    return Stopwatch(
        ms=statistics.median(slowest),
        p10_ms=low,
        p90_ms=high,
        interval=half_width(slowest) / statistics.median(slowest),
        calls=calls * len(rounds),
        slowest_rank=max(range(len(medians)), key=lambda rank: medians[rank]),
        spread=max(medians) / max(min(medians), 1e-9),
        peak_memory_bytes=peak,
    )


def _time_round(call: Callable[[], Any], calls: int, kind: str, group: Any) -> list[float]:
    """Return the milliseconds of one call on every rank, averaged over a round of `calls`."""
    dist.barrier(group)
    if kind == "cuda":
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        elapsed_ms = begin.elapsed_time(end)
    else:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed_ms = 1e3 * (time.perf_counter() - began)
    return _all_gather_value(elapsed_ms / calls, kind, group)


def _all_gather_value(value: float, kind: str, group: Any) -> list[float]:
    local = torch.tensor([value], dtype=torch.float64, device=kind)
    gathered = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, local, group=group)
    return [float(element) for element in gathered]


def _any_rank(flag: bool, kind: str, group: Any) -> bool:
    """Return whether `flag` is set on any rank, so that all ranks continue or stop together."""
    return max(_all_gather_value(float(flag), kind, group)) > 0


def _reset_peak_memory(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
