"""Extracts the measurements of parity, determinism and bench from reports, in a lock's form."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.lock import LockedError, LockedRepeats, LockedSpeed
from attncheck.core.report import Answer, MeasuredSection, Report, Verdict
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.parity import ParitySection

WORST_FIRST: tuple[Answer, ...] = ("fail", "lost", "warn", "pass")
SECTIONS: tuple[type[MeasuredSection], ...] = (ParitySection, DeterminismSection, BenchSection)


def has_measurements(report: Report) -> bool:
    """Return whether a report holds anything that a lock stores."""
    return any(report.section(kind) is not None for kind in SECTIONS)


def missing_backends(reports: Iterable[Report]) -> dict[str, str]:
    """Return why each backend that was missing when the reports were measured was unavailable."""
    sections = [section for report in reports for section in _parity_sections(report)]
    states = [state for section in sections for state in section.backends]
    return {state.name: state.missing for state in states if state.missing and not state.over_ranks}


def read_errors(reports: Sequence[Report]) -> tuple[LockedError, ...]:
    """Return parity's worst error for each backend and family of cases, by name."""
    groups: dict[tuple[str, str, str, str], list[Verdict]] = {}
    for report in reports:
        for section in _parity_sections(report):
            suite = f"{section.device.suite} {section.device.seed}" if isinstance(section, ParitySection) else ""
            for verdict in section.verdicts:
                key = (verdict.backend, verdict.family, suite, section.device.device)
                groups.setdefault(key, []).append(verdict)
    return tuple(error for key in sorted(groups) for error in _worst_error(key, groups[key]))


def _parity_sections(report: Report) -> Iterator[ParitySection | BenchSection]:
    for section in (report.section(ParitySection), report.section(BenchSection)):
        if section is not None and not section.device.emulated:
            yield section


def _worst_error(key: tuple[str, str, str, str], verdicts: list[Verdict]) -> Iterator[LockedError]:
    """Yield the worst error of one group; nothing if none was judged and something was not refused."""
    judged = [verdict for verdict in verdicts if is_judged(verdict)]
    if judged:
        answer = min((verdict.answer for verdict in judged), key=WORST_FIRST.index)
        yield LockedError(*key, answer, round(max(verdict.budget_ratio for verdict in judged), 4))
    elif all(verdict.answer == "refused" for verdict in verdicts):
        yield LockedError(*key, "refused", 0.0)


def is_judged(verdict: Verdict) -> bool:
    """Return whether a verdict judges how a backend computes, and not only a lack of time or memory."""
    return verdict.answer in ("pass", "warn", "fail") or (verdict.answer == "lost" and verdict.budget_ratio > 0)


def read_repeats(reports: Iterable[Report]) -> tuple[LockedRepeats, ...]:
    """Return determinism's answers, by backend and case."""
    answers: dict[tuple[str, str, str], Answer] = {}
    for report in reports:
        section = report.section(DeterminismSection)
        if section is None or section.device.emulated:
            continue
        for verdict in section.verdicts:
            if verdict.answer in ("pass", "warn", "fail"):
                device = section.device.name if section.device.device == "cuda" else section.device.device
                answers[verdict.backend, verdict.case, device] = verdict.answer
    return tuple(LockedRepeats(*key, answers[key]) for key in sorted(answers))


def read_speeds(reports: Iterable[Report]) -> tuple[LockedSpeed, ...]:
    """Return the settled timings on a GPU; a CPU's say nothing about a training job."""
    speeds: dict[tuple[str, ...], LockedSpeed] = {}
    for report in reports:
        section = report.section(BenchSection)
        if section is None or section.device.device != "cuda":
            continue
        for timing in section.timings:
            if timing.outcome == "ok" and timing.stable and timing.median_ms > 0:
                speed = LockedSpeed(
                    timing.backend,
                    timing.case.name,
                    timing.passes,
                    timing.mode,
                    section.device.name,
                    round(timing.median_ms, 6),
                    round(timing.interval_ms, 6),
                    round(statistics.median(timing.reference_ms), 6) if timing.reference_ms else 0.0,
                )
                speeds[speed.backend, speed.case, speed.passes, speed.mode, speed.gpu] = speed
    return tuple(speeds[key] for key in sorted(speeds))
