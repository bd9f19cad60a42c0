"""The changes of measurements beyond their noise: errors, refusals, varying bits, speeds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from attncheck.core.lock import Lock, LockedError, LockedRepeats, LockedSpeed
from attncheck.core.report import HUGE, Problem
from attncheck.core.results.lock import Move
from attncheck.stacks.lock import judged
from attncheck.stacks.lock.judged import JudgedMove

SLOWER = 1.10  # a timing is slower if it exceeds both intervals by this factor
GRAVITY = {"pass": 0, "warn": 1, "lost": 2, "fail": 3}


@dataclass(frozen=True)
class Comparison:
    """The comparison of measurements: the changes, the number compared, and those that could not be compared."""

    moves: tuple[JudgedMove, ...] = ()
    compared: int = 0
    not_compared: tuple[str, ...] = ()


def compare_numbers(locked: Lock, now: Lock, missing: Mapping[str, str]) -> Comparison:
    """Compare the measurements of both sides; `missing` says why a backend is unavailable now."""
    errors_now = {(e.backend, e.family, e.suite, e.device): e for e in now.errors}
    repeats_now = {(r.backend, r.case, r.device): r for r in now.repeats}
    speeds_now = {(s.backend, s.case, s.passes, s.mode, s.gpu): s for s in now.speeds}
    errors = [(e, errors_now.get((e.backend, e.family, e.suite, e.device))) for e in locked.errors]
    repeats = [(r, repeats_now.get((r.backend, r.case, r.device))) for r in locked.repeats]
    speeds = [(s, speeds_now.get((s.backend, s.case, s.passes, s.mode, s.gpu))) for s in locked.speeds]
    gone = {error.backend for error, after in errors if after is None and error.answer in GRAVITY} & missing.keys()
    moves = (
        *_compare_errors((before, after) for before, after in errors if after is not None),
        *_find_refusals(errors, {name: missing[name] for name in sorted(gone)}),
        *_compare_repeats((before, after) for before, after in repeats if after is not None),
        *_compare_speeds((before, after) for before, after in speeds if after is not None),
    )
    compared = sum(after is not None for pairs in (errors, repeats, speeds) for _, after in pairs)
    lacking = (
        (
            "worst parity errors",
            [before for before, after in errors if after is None and before.backend not in gone],
        ),
        ("answers of determinism", [before for before, after in repeats if after is None]),
        ("times of bench", [before for before, after in speeds if after is None]),
    )
    not_compared = tuple(f"{len(rows)} {name}: {_why_lacking(now)}" for name, rows in lacking if rows)
    return Comparison(moves, compared, not_compared)


def _why_lacking(now: Lock) -> str:
    if not now.measurements:
        return "no new measurements were given (--report FILE)"
    return "the given reports measured other cases, or another device"


def _compare_errors(pairs: Iterable[tuple[LockedError, LockedError]]) -> Iterator[JudgedMove]:
    for before, now in pairs:
        if before.answer not in GRAVITY or now.answer not in GRAVITY:
            continue
        subject = f"{before.backend} {before.family}"
        move = Move(subject, _describe_error(before), _describe_error(now))
        if GRAVITY[now.answer] > GRAVITY[before.answer]:
            message = f"{before.backend} on {before.family} is at {move.now}, but {move.before}"
            evidence = (
                f"{before.suite or 'the cases of bench'}, on {before.device}: an error above 1 exceeds its budget",
            )
            yield judged.harmful(judged.ERROR_GREW, move, Problem(message, evidence, (), before.backend))
        elif GRAVITY[now.answer] < GRAVITY[before.answer]:
            yield judged.harmless(subject, move.before, move.now, "better than in the lock")


def _describe_error(error: LockedError) -> str:
    worst = "" if error.worst >= HUGE else f"{error.worst:.3g} of its budget, "
    return f"{worst}{error.answer}"


def _find_refusals(
    errors: Iterable[tuple[LockedError, LockedError | None]], missing: Mapping[str, str]
) -> Iterator[JudgedMove]:
    """Yield each backend that answered when the lock was made, and now refuses a family or is unavailable."""
    refused: dict[str, list[str]] = {}
    for before, now in errors:
        if now is None or before.answer == now.answer:
            continue
        if now.answer == "refused":
            refused.setdefault(before.backend, []).append(before.family)
        elif before.answer == "refused":
            yield judged.harmless(f"{before.backend} {before.family}", "refused", now.answer, "no longer refused")
    for backend, families in refused.items():
        message = f"{backend} now refuses {', '.join(families)}"
        move = Move(backend, f"computes {', '.join(families)}", "refuses")
        yield judged.harmful(judged.BACKEND_GONE, move, Problem(message, (), (), backend))
    for backend, reason in missing.items():
        message = f"{backend} is no longer available; the lock contains measurements of it"
        yield judged.harmful(
            judged.BACKEND_GONE, Move(backend, "measured", "cannot be had"), Problem(message, (reason,), (), backend)
        )


def _compare_repeats(pairs: Iterable[tuple[LockedRepeats, LockedRepeats]]) -> Iterator[JudgedMove]:
    for before, now in pairs:
        move = Move(f"{before.backend} {before.case}", before.answer, now.answer)
        if GRAVITY[now.answer] > GRAVITY[before.answer]:
            message = f"{before.backend} is less reproducible than in the lock: {before.answer} became {now.answer}"
            evidence = (f"{before.case}, on {before.device}",)
            yield judged.harmful(judged.BITS_VARY, move, Problem(message, evidence, (), before.backend))
        elif now.answer != before.answer:
            yield judged.harmless(move.subject, move.before, move.now, "better than in the lock")


def _compare_speeds(pairs: Iterable[tuple[LockedSpeed, LockedSpeed]]) -> Iterator[JudgedMove]:
    for before, now in pairs:
        slowdown = now.reference_ms / before.reference_ms if before.reference_ms and now.reference_ms else 1.0
        allowed = SLOWER * (before.median_ms + before.interval_ms) * max(1.0, slowdown)
        subject = f"{before.backend} {before.case} {before.passes}"
        move = Move(subject, _describe_speed(before), _describe_speed(now))
        if now.median_ms - now.interval_ms > allowed:
            times = now.median_ms / before.median_ms
            message = f"{before.backend} takes {times:.2f} × the lock's time: {move.now}, was {move.before}"
            evidence = [f"{before.case}, {before.passes}, {before.mode}, on {before.gpu}"]
            if before.reference_ms and now.reference_ms:
                evidence.append(f"a plain matrix product takes {slowdown:.2f} × its earlier time")
            yield judged.harmful(judged.SPEED_LOST, move, Problem(message, tuple(evidence), (), before.backend))
        elif now.median_ms - now.interval_ms > SLOWER * (before.median_ms + before.interval_ms):
            reason = f"the whole GPU is {slowdown:.2f} × slower, including a plain matrix product"
            yield judged.harmless(subject, move.before, move.now, reason)


def _describe_speed(speed: LockedSpeed) -> str:
    return f"{speed.median_ms:.4g} ± {speed.interval_ms:.2g} ms"
