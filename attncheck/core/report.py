"""The report: the snapshot, the findings, what could not be judged, and one section for each command that ran.

A section is what one command measured or read. Its type is a frozen dataclass in `core/results/`, named by `SECTION`
there; `report/sections/` has the code that shows it under the same name. This module does not know which sections
exist.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from attncheck.core.findings import (
    SEVERITIES,
    Allowance,
    Finding,
    Fix,
    Problem,
    Severity,
    Skip,
    by_severity,
    is_selected,
)
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import (
    ANSWERS,
    FAIL_FACTOR,
    HUGE,
    UNMEASURED,
    Answer,
    BackendState,
    MeasuredOn,
    Outcome,
    Repeats,
    Run,
    Verdict,
)

__all__ = [
    "ANSWERS",
    "FAIL_FACTOR",
    "HUGE",
    "SEVERITIES",
    "UNMEASURED",
    "Allowance",
    "Answer",
    "BackendState",
    "Finding",
    "Fix",
    "MeasuredOn",
    "Outcome",
    "Problem",
    "Repeats",
    "Run",
    "Severity",
    "Skip",
    "Verdict",
    "by_severity",
    "is_selected",
]


T = TypeVar("T", bound="Section")
Item = TypeVar("Item")
NOTHING_MEASURED = "nothing was measured"
MERGED_COMMAND = "report"  # the command of a report that merges several reports
# Fields of sections whose items are measurements: two that are equal are two. Other lists name each thing once.
MEASUREMENTS = frozenset({"verdicts", "runs", "repeats", "timings", "recommendations", "growth", "conclusions"})
MAX_REASONS = 3  # how many reasons for missing measurements one line shows


@dataclass(frozen=True)
class OpenQuestion:
    """A requested check that gave no result; its silence is not a pass."""

    name: str  # the name of the check
    outcome: str  # "unanswered", "left out"
    reason: str


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C while something was measured; `report` holds what was measured until then."""

    def __init__(self, report: "Report") -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True)
class Section:
    """One command's part of a report. A subclass holds its results and returns its verdicts."""

    name: ClassVar[str]

    @property
    def device(self) -> MeasuredOn:
        """The device that was measured on; blank if nothing was measured."""
        return MeasuredOn()

    @property
    def answers(self) -> tuple[Verdict, ...]:
        """The verdicts that are counted and shown alongside findings."""
        return ()

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The requested checks that gave no result; if a probe was lost, what was found there proves nothing."""
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in getattr(self, "lost", ()))

    def merge(self: T, later: T) -> T:
        """Return both sections as one: they come from two runs of one command, as a gate makes for each model.

        Lists are joined, of measurements with all their items. Of another field the later value counts if it is known.
        """
        merged: dict[str, Any] = {}
        for spec in fields(self):
            own, other = getattr(self, spec.name), getattr(later, spec.name)
            if isinstance(own, MeasuredOn):
                merged[spec.name] = own.merge(other)
            elif isinstance(own, tuple):
                merged[spec.name] = (*own, *other) if spec.name in MEASUREMENTS else deduplicate((*own, *other))
            else:
                merged[spec.name] = other if other != spec.default else own
        return replace(self, **merged)


class MeasuredSection(Section):
    """A section of a command that measures on a device. A subclass has both fields, in its own order."""

    # The outcomes that count as answers. A crash answers parity's question, but not that of a benchmark.
    answering_outcomes: ClassVar[tuple[Outcome, ...]] = ("ok", "raised", "died", "timed_out")

    measured_on: MeasuredOn
    verdicts: tuple[Verdict, ...]

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each requested item, and the reason if it was not measured."""
        return ()

    @property
    def device(self) -> MeasuredOn:
        """The device that was measured on."""
        return self.measured_on

    @property
    def answers(self) -> tuple[Verdict, ...]:
        """The verdicts, one for each thing that was judged."""
        return self.verdicts

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """Remarks that nothing was measured, that something ran out of time, or that the run was interrupted."""
        reasons = (_describe_unmeasured(self.measurements, self.answering_outcomes), _describe_interrupt(self))
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in reasons if reason)


@dataclass(frozen=True)
class Report:
    """The result of one command. `exit_code` is filled in by the command line, which knows --fail-on."""

    command: str  # as on the command line: "doctor", "parity", …
    snapshot: Snapshot
    findings: tuple[Finding, ...] = ()
    skips: tuple[Skip, ...] = ()
    passed: tuple[str, ...] = ()  # codes of the rules that were judged without a finding
    suppressed: tuple[str, ...] = ()  # codes switched off by --select, --ignore or the configuration
    baselined: tuple[Finding, ...] = ()  # findings allowed because they are in the baseline
    allowed: tuple[Finding, ...] = ()  # findings allowed by the policy, for the reasons in `allowances`
    allowances: tuple[Allowance, ...] = ()
    sections: Mapping[str, Section] = field(default_factory=dict)
    exit_code: int = 0

    def section(self, kind: type[T]) -> T | None:
        """Return the section of this type, None if the report has none."""
        section = self.sections.get(kind.name)
        return section if isinstance(section, kind) else None

    def with_section(self, section: Section, **changes: Any) -> "Report":
        """Return the report with `section` replacing the one of its name, and other fields changed."""
        return replace(self, sections={**self.sections, section.name: section}, **changes)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all sections."""
        return tuple(verdict for section in self.sections.values() for verdict in section.answers)

    @property
    def device(self) -> MeasuredOn:
        """The device that was measured on, of the first section that measured."""
        devices = (section.device for section in self.sections.values())
        return next((device for device in devices if device.device), MeasuredOn())

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the measurements; the report holds what was measured until then."""
        return any(section.device.interrupted for section in self.sections.values())

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The requested checks that gave no result or an incomplete one."""
        return tuple(question for section in self.sections.values() for question in section.unanswered)

    def count_by_severity(self) -> dict[str, int]:
        """Return how many findings there are of each severity."""
        return {severity: sum(finding.severity == severity for finding in self.findings) for severity in SEVERITIES}

    def fails(self, fail_on: str) -> bool:
        """Return whether a finding is at or above `fail_on`: "error", "warning" or "never"."""
        return bool(self.findings_at(fail_on))

    def findings_at(self, fail_on: str) -> tuple[Finding, ...]:
        """Return the findings at or above `fail_on`: "error", "warning" or "never"."""
        severities = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[fail_on]
        return tuple(finding for finding in self.findings if finding.severity in severities)

    def worst_severity(self) -> Severity | None:
        """Return the worst severity among the findings, or None."""
        counts = self.count_by_severity()
        return next((severity for severity in SEVERITIES if counts[severity]), None)


def _describe_unmeasured(measurements: tuple[tuple[Outcome, str], ...], answering_outcomes: tuple[Outcome, ...]) -> str:
    """Return a remark if nothing was measured or something was not judged for lack of time; otherwise ""."""
    unmeasured = [reason or outcome for outcome, reason in measurements if outcome not in answering_outcomes]
    out_of_time = [reason for outcome, reason in measurements if outcome == "out_of_time"]
    if measurements and len(unmeasured) == len(measurements):
        return f"{NOTHING_MEASURED}: {_count_reasons(unmeasured)}"
    return f"{len(out_of_time)} of {len(measurements)} not judged: {_count_reasons(out_of_time)}" if out_of_time else ""


def describe_no_timing(outcome: Outcome, reason: str) -> str:
    """Return why something was not timed, for its table row."""
    return f"{outcome}: {reason}" if reason else outcome


def _count_reasons(reasons: list[str]) -> str:
    """Return the different reasons with their counts, the most frequent first, limited to a few."""
    counts = Counter(reasons).most_common()
    shown = [f"{count} × {reason}" if len(reasons) > 1 else reason for reason, count in counts[:MAX_REASONS]]
    rest = sum(count for _, count in counts[MAX_REASONS:])
    return "; ".join([*shown, *([f"{rest} for other reasons"] if rest else [])])


def _describe_interrupt(section: MeasuredSection) -> str:
    measured_on = section.measured_on
    missing = f": {measured_on.not_reached} measurements are missing" if measured_on.not_reached else ""
    return f"interrupted before its end{missing}" if measured_on.interrupted else ""


def deduplicate(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return the distinct items in order; they need not be hashable."""
    kept: list[Item] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return tuple(kept)


def mark_interrupted(report: Report) -> Report:
    """Return a report of measuring sections, marked as interrupted."""
    sections: dict[str, Section] = {}
    for name, section in report.sections.items():
        changes: dict[str, Any] = {"measured_on": replace(section.device, interrupted=True)}
        sections[name] = replace(section, **changes) if isinstance(section, MeasuredSection) else section
    return replace(report, sections=sections)


def merge_reports(command: str, snapshot: Snapshot, reports: Iterable[Report]) -> Report:
    """Return one report on `snapshot` with everything that `reports` hold, each finding once.

    A rule with a finding in one of them has not passed. A rule that was inconclusive in one and passed in another has
    passed.
    """
    all_reports = tuple(reports)
    findings, baselined, allowed = (
        by_severity(finding for report in all_reports for finding in getattr(report, name))
        for name in ("findings", "baselined", "allowed")
    )
    found_codes = {finding.code for finding in (*findings, *baselined, *allowed)}
    passed = {code for report in all_reports for code in report.passed} - found_codes
    judged = passed | found_codes
    skips = dict.fromkeys(skip for report in all_reports for skip in report.skips if skip.code not in judged)
    return Report(
        command,
        snapshot,
        findings,
        tuple(skips),
        tuple(sorted(passed)),
        tuple(sorted({code for report in all_reports for code in report.suppressed})),
        baselined,
        allowed,
        tuple(dict.fromkeys(allowance for report in all_reports for allowance in report.allowances)),
        merge_sections(report.sections for report in all_reports),
    )


def merge_sections(parts: Iterable[Mapping[str, Section]]) -> dict[str, Section]:
    """Return sections by name; those of the same name are merged by `Section.merge`."""
    merged: dict[str, Section] = {}
    for sections in parts:
        for name, section in sections.items():
            merged[name] = merged[name].merge(section) if name in merged else section
    return merged
