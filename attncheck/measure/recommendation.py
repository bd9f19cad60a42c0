"""Recommends the fastest correct backend, and the fastest that is also reproducible, from timings alone.

A backend is a candidate if parity passed in every case of the model, in this mode. The noise of its time is its own
interval plus the measured drift of the device. Two candidates are tied if their times differ by less.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from attncheck.core.lists import group_values
from attncheck.core.results.ring_timings import Passes
from attncheck.core.results.timings import Candidate, Recommendation, TimedMode, Timing, Wanted

UNSTABLE_NOISE = 0.05  # the least noise of a timing that never settled


def recommend_backends(
    timings: Sequence[Timing], setting: Callable[[str], str], order_only: bool = False
) -> tuple[Recommendation, ...]:
    """Return the recommendations for each kind of pass that was timed; `setting(backend)` is how a job selects it.

    With `order_only`, the fastest is named without a setting, because no job trains on what was timed.
    """
    recommendations: list[Recommendation] = []
    for passes in get_args(Passes):
        pass_timings = [timing for timing in timings if timing.passes == passes]
        if not pass_timings:
            continue
        correct = find_candidates(pass_timings, "correct")
        deterministic = find_candidates(pass_timings, "deterministic")
        recommendations += [
            _make_recommendation(passes, "correct", correct, correct, setting),
            _make_recommendation(passes, "deterministic", deterministic, correct, setting),
        ]
    if order_only:
        return tuple(replace(item, setting="", order_only=True) for item in recommendations)
    return tuple(recommendations)


def find_candidates(timings: Sequence[Timing], requirement: Wanted) -> list[Candidate]:
    """Return the backends that are correct in every case, and reproducible if required, the fastest first."""
    cases = {timing.case.name for timing in timings}
    usual_ms = median_reference_ms(timings)
    timings_by_backend = group_values(
        ((timing.backend, timing.mode), timing)
        for timing in timings
        if timing.outcome == "ok" and timing.answer == "pass" and (requirement == "correct" or timing.reproducible)
    )
    candidates = [
        _make_candidate(backend, mode, members, usual_ms)
        for (backend, mode), members in timings_by_backend.items()
        if {timing.case.name for timing in members} == cases
    ]
    return sorted(candidates, key=lambda candidate: candidate.ms)


def _make_candidate(backend: str, mode: TimedMode, timings: Sequence[Timing], usual_ms: float) -> Candidate:
    total_ms = sum(timing.layers * timing.median_ms for timing in timings)
    noise_ms = sum(timing.layers * timing.median_ms * relative_noise(timing, usual_ms) for timing in timings)
    switch = timings[0].deterministic_switch if mode == "deterministic" else ""
    return Candidate(
        backend, mode, total_ms, noise_ms / total_ms, max(timing.peak_memory_bytes for timing in timings), switch
    )


def median_reference_ms(timings: Sequence[Timing]) -> float:
    """Return the median time of the reference product over all timings, in milliseconds; 0 if there is none."""
    times = sorted(ms for timing in timings for ms in timing.reference_ms)
    return times[len(times) // 2] if times else 0.0


def relative_noise(timing: Timing, usual_ms: float) -> float:
    """Return the relative error of a time: its interval, and the device's drift at that time.

    The drift is the time of the matrix product before and after, compared with its median over all timings.
    """
    share = timing.interval_ms / timing.median_ms
    if not timing.stable:
        share = max(share, UNSTABLE_NOISE)
    drifts = [abs(ms / usual_ms - 1.0) for ms in timing.reference_ms] if usual_ms else [0.0]
    return share + max(drifts, default=0.0)


def _make_recommendation(
    passes: Passes,
    requirement: Wanted,
    candidates: Sequence[Candidate],
    correct: Sequence[Candidate],
    setting: Callable[[str], str],
) -> Recommendation:
    if not candidates:
        quality = "correct" if requirement == "correct" else "correct and reproducible"
        return Recommendation(passes, requirement, reason=f"no backend is {quality} here")
    best = candidates[0]
    rivals = [
        other
        for other in candidates[1:]
        if other.backend != best.backend and best.ms * (1.0 + best.noise) >= other.ms * (1.0 - other.noise)
    ]
    cost = best.ms / correct[0].ms
    if rivals:
        tied = (best, *rivals)
        times = ", ".join(f"{c.backend} {c.ms:.4g} ms (off by up to {100 * c.noise:.1f} %)" for c in tied)
        return Recommendation(
            passes,
            requirement,
            reason=f"within the noise of each other: {times}",
            tied=tuple(candidate.backend for candidate in tied),
            ms=best.ms,
            noise=best.noise,
            cost=cost,
        )
    return Recommendation(
        passes,
        requirement,
        choice=best.backend,
        mode=best.mode,
        setting="\n".join(filter(None, (setting(best.backend), best.deterministic_switch))),
        reason=_describe_lead(best, candidates),
        ms=best.ms,
        noise=best.noise,
        cost=cost,
        peak_memory_bytes=best.peak_memory_bytes,
    )


def _describe_lead(best: Candidate, candidates: Sequence[Candidate]) -> str:
    """Return how much faster the best is than the next backend."""
    others = [candidate for candidate in candidates if candidate.backend != best.backend]
    if not others:
        return "the only one"
    return f"{others[0].ms / best.ms:.2f} × as fast as {others[0].backend}"
