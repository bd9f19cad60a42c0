"""Findings in plain lines, as JUnit readers and annotations show them; not a format of its own."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.gate import Allowance


def told(finding: Finding) -> Iterator[str]:
    """Yield what was seen, and the ways out."""
    yield from (f"seen: {line}" for line in finding.evidence)
    for fix in finding.fixes:
        yield f"fix: {fix.title}" + (f" (proven: {fix.proven})" if fix.proven else "")
        yield from (f"    {line}" for line in fix.text.splitlines())


def allowance(finding: Finding, report: Report) -> Allowance | None:
    """Return what lets a finding pass: the policy's word on the longest prefix of its code."""
    fitting = [each for each in report.allowances if finding.code.startswith(each.code)]
    return max(fitting, key=lambda each: len(each.code), default=None)
