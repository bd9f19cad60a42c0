"""Findings as plain lines of text, which several formats share: JUnit, GitHub's annotations, Markdown, text."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Allowance, Finding
from attncheck.core.report import Report


def evidence_and_fixes(finding: Finding) -> Iterator[str]:
    """Yield the lines of a finding's evidence, then those of its fixes."""
    yield from (f"seen: {line}" for line in finding.evidence)
    for fix in finding.fixes:
        yield f"fix: {fix.title}" + (f" (proven: {fix.proven})" if fix.proven else "")
        yield from (f"    {line}" for line in fix.text.splitlines())


def find_allowance(finding: Finding, report: Report) -> Allowance | None:
    """Return the policy's allowance that lets a finding pass: the one for the longest prefix of its code."""
    matching = [allowance for allowance in report.allowances if finding.code.startswith(allowance.code)]
    return max(matching, key=lambda allowance: len(allowance.code), default=None)


def describe_let_pass(report: Report) -> Iterator[str]:
    """Yield a line for each finding that was let pass: in the baseline, or allowed by the policy, and why."""
    for finding in report.baselined:
        yield f"{_format_headline(finding)} (in the baseline)"
    for finding in report.allowed:
        allowance = find_allowance(finding, report)
        reason = f"allowed until {allowance.until}: {allowance.reason}" if allowance else "allowed"
        yield f"{_format_headline(finding)} ({reason})"


def _format_headline(finding: Finding) -> str:
    return f"{finding.code} {finding.severity}: {finding.message}"
