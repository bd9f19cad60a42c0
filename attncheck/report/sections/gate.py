"""What a gate did, check by check, and what it let pass knowingly."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.gate import Stage
from attncheck.core.results.verdicts import ANSWERS

MARKS = {"clean": "ok", "unanswered": "warning", "left out": "-"}


def rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield a mark, the check's name and how it ended, for each check of the gate."""
    for stage in report.stages:
        found = "error" if report.worst() == "error" else "warning"
        yield MARKS.get(stage.outcome, found), stage.check, _told(stage)


def _told(stage: Stage) -> str:
    parts: list[str] = ["nothing found" if stage.outcome == "clean" else stage.outcome]
    if stage.reason:
        parts.append(stage.reason)
    parts += [f"{stage.answers[answer]} {answer}" for answer in ANSWERS if stage.answers.get(answer)]
    if stage.outcome != "left out":
        parts.append(f"{stage.seconds:.1f} s")
    return " · ".join(parts)


def passing(report: Report) -> Iterator[str]:
    """Yield a line for each finding that was let pass: known by the baseline, or allowed by the policy, and why."""
    for finding in report.baselined:
        yield f"{_named(finding)} (in the baseline)"
    for finding in report.allowed:
        why = next((a for a in report.allowances if finding.code.startswith(a.code)), None)
        yield f"{_named(finding)} (allowed until {why.until}: {why.reason})" if why else f"{_named(finding)} (allowed)"


def _named(finding: Finding) -> str:
    return f"{finding.code} {finding.severity}: {finding.message}"
