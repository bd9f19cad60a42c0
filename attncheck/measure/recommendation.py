"""Which backend to take: the fastest that is right, and the fastest that is reproducible too; arithmetic over timings.

A backend is a candidate where parity passed in every case of the model, in this mode. How far its time may be off is
its own interval and what the device was seen to drift; two candidates that lie closer than that are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from attncheck.core.results.ring_timings import Passes
from attncheck.core.results.timings import Candidate, Recommendation, TimedMode, Timing, Wanted

UNSTABLE = 0.05  # noise of a timing that never settled, at least


def recommend(timings: Sequence[Timing], setting: Callable[[str], str]) -> tuple[Recommendation, ...]:
    """Return the recommendations for each kind of pass that was timed; `setting(backend)` is how a job asks for it."""
    found: list[Recommendation] = []
    for passes in get_args(Passes):
        mine = [timing for timing in timings if timing.passes == passes]
        if not mine:
            continue
        fast = candidates(mine, "correct")
        sure = candidates(mine, "deterministic")
        found += [
            _choice(passes, "correct", fast, fast, setting),
            _choice(passes, "deterministic", sure, fast, setting),
        ]
    return tuple(found)


def candidates(timings: Sequence[Timing], wanted: Wanted) -> list[Candidate]:
    """Return those that are right in every case of these timings, and reproducible where that is wanted; by speed."""
    cases = {timing.case.name for timing in timings}
    usual = usual_ms(timings)
    grouped: dict[tuple[str, TimedMode], list[Timing]] = {}
    for timing in timings:
        if timing.outcome == "ok" and timing.answer == "pass" and (wanted == "correct" or timing.reproducible):
            grouped.setdefault((timing.backend, timing.mode), []).append(timing)
    found = [
        _candidate(backend, mode, members, usual)
        for (backend, mode), members in grouped.items()
        if {timing.case.name for timing in members} == cases
    ]
    return sorted(found, key=lambda candidate: candidate.ms)


def _candidate(backend: str, mode: TimedMode, timings: Sequence[Timing], usual: float) -> Candidate:
    whole = sum(timing.layers * timing.median_ms for timing in timings)
    off = sum(timing.layers * timing.median_ms * noise(timing, usual) for timing in timings)
    switch = timings[0].deterministic_switch if mode == "deterministic" else ""
    return Candidate(backend, mode, whole, off / whole, max(timing.peak_memory_bytes for timing in timings), switch)


def usual_ms(timings: Sequence[Timing]) -> float:
    """Return the median time of the reference product over all timings, in milliseconds; 0 where there is none."""
    times = sorted(ms for timing in timings for ms in timing.reference_ms)
    return times[len(times) // 2] if times else 0.0


def noise(timing: Timing, usual: float) -> float:
    """Return how far a time may be off, as a share of it: its interval, and how fast the device was just then.

    The device's speed is that of the product of matrices before and after, against its median over all timings.
    """
    own = timing.interval_ms / timing.median_ms
    if not timing.stable:
        own = max(own, UNSTABLE)
    drifted = [abs(ms / usual - 1.0) for ms in timing.reference_ms] if usual else [0.0]
    return own + max(drifted, default=0.0)


def _choice(
    passes: Passes,
    wanted: Wanted,
    found: Sequence[Candidate],
    fast: Sequence[Candidate],
    setting: Callable[[str], str],
) -> Recommendation:
    if not found:
        word = "correct" if wanted == "correct" else "correct and reproducible"
        return Recommendation(passes, wanted, reason=f"no backend is {word} here")
    best = found[0]
    near = [other for other in found[1:] if other.backend != best.backend and _overlap(best, other)]
    cost = best.ms / fast[0].ms
    if near:
        tied = (best, *near)
        times = ", ".join(f"{c.backend} {c.ms:.4g} ms ± {100 * c.noise:.1f} %" for c in tied)
        return Recommendation(
            passes,
            wanted,
            reason=f"within the noise of each other: {times}",
            tied=tuple(candidate.backend for candidate in tied),
            ms=best.ms,
            noise=best.noise,
            cost=cost,
        )
    return Recommendation(
        passes,
        wanted,
        choice=best.backend,
        mode=best.mode,
        setting="\n".join(filter(None, (setting(best.backend), best.deterministic_switch))),
        reason=_lead(best, found),
        ms=best.ms,
        noise=best.noise,
        cost=cost,
        peak_memory_bytes=best.peak_memory_bytes,
    )


def _overlap(one: Candidate, other: Candidate) -> bool:
    """Say whether the times of two candidates, the first the faster, cannot be told apart."""
    return one.ms * (1.0 + one.noise) >= other.ms * (1.0 - other.noise)


def _lead(best: Candidate, found: Sequence[Candidate]) -> str:
    """Return by how much the best is ahead of the next backend."""
    others = [candidate for candidate in found if candidate.backend != best.backend]
    if not others:
        return "the only one"
    return f"{others[0].ms / best.ms:.2f} × as fast as {others[0].backend}"
