"""A finding in plain lines, as JUnit readers and annotations show it; not a format of its own."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Allowance, Finding
from attncheck.core.report import Report


def evidence_and_fixes(finding: Finding) -> Iterator[str]:
    """Yield what was seen, and the ways out."""
    yield from (f"seen: {line}" for line in finding.evidence)
    for fix in finding.fixes:
        yield f"fix: {fix.title}" + (f" (proven: {fix.proven})" if fix.proven else "")
        yield from (f"    {line}" for line in fix.text.splitlines())


def allowance_for(finding: Finding, report: Report) -> Allowance | None:
    """Return what lets a finding pass: the policy's allowance for the longest prefix of its code."""
    fitting = [allowance for allowance in report.allowances if finding.code.startswith(allowance.code)]
    return max(fitting, key=lambda allowance: len(allowance.code), default=None)


def let_pass(report: Report) -> Iterator[str]:
    """Yield a line for each finding that was let pass: known by the baseline, or allowed by the policy, and why."""
    for finding in report.baselined:
        yield f"{_headline(finding)} (in the baseline)"
    for finding in report.allowed:
        allowance = allowance_for(finding, report)
        why = f"allowed until {allowance.until}: {allowance.reason}" if allowance else "allowed"
        yield f"{_headline(finding)} ({why})"


def _headline(finding: Finding) -> str:
    return f"{finding.code} {finding.severity}: {finding.message}"
