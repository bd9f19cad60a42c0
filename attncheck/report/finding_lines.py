"""Findings as plain lines of text, which several formats share: JUnit, GitHub's annotations, Markdown, text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.findings import SEVERITIES, Allowance, Finding, Fix, Skip
from attncheck.core.io.visible import indent_continuation
from attncheck.core.report import NOTHING_MEASURED, MeasuredSection, OpenQuestion, Report
from attncheck.core.results.lint import launches_of

MAX_PLACES = 5  # of a finding in several launches
MAX_CODES = 5  # of a line that only counts findings
INDENT = 6  # columns of what a text with line ends goes on with, so that it begins no "seen: " or "fix: " of its own


def describe_finding(finding: Finding) -> str:
    """Return a finding's message, its evidence and its fixes, in lines."""
    return "\n".join((indent_continuation(finding.message, INDENT), *evidence_and_fixes(finding)))


def evidence_and_fixes(finding: Finding) -> Iterator[str]:
    """Yield the lines of a finding's evidence, then those of its fixes."""
    yield from (indent_continuation(f"seen: {line}", INDENT) for line in finding.evidence)
    for fix in finding.fixes:
        title = f"{fix_label(fix)}: {fix.title}" + (f" (proven: {fix.proven})" if fix.proven else "")
        yield indent_continuation(title, INDENT)
        yield from (f"    {line}" for line in fix.text.splitlines())


def describe_places(finding: Finding, report: Report) -> str:
    """Return where a finding is, "" in a report on less than two launches: "a.sh:3:1, b.sh:4:5 and 12 more"."""
    if len(launches_of(report)) < 2 or not finding.locations:
        return ""
    places = [str(location) for location in finding.locations]
    rest = len(places) - MAX_PLACES
    return ", ".join(places[:MAX_PLACES]) + (f" and {rest} more" if rest > 0 else "")


def fix_label(fix: Fix) -> str:
    """Return what a fix is called in a report: "next" where it mends nothing, and tells or decides more."""
    return "next" if fix.kind == "advice" else "fix"


def count_severities(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield how many findings there are of each severity that has some: "2 errors", "1 note"."""
    counts = Counter(finding.severity for finding in findings)
    for severity in SEVERITIES:
        if counts[severity]:
            yield f"{counts[severity]} {severity}{'s' * (counts[severity] > 1)}"


def count_findings(findings: Sequence[Finding]) -> str:
    """Return the number of findings and their codes in a few words: "2 errors, ATN101, ATN142"."""
    codes = list(dict.fromkeys(finding.code for finding in findings))
    more = [f"{len(codes) - MAX_CODES} more"] if len(codes) > MAX_CODES else []
    return ", ".join([*count_severities(findings), *codes[:MAX_CODES], *more])


def list_skips(report: Report, verbose: bool) -> tuple[Skip, ...]:
    """Return the rules to list that could not judge: all of them, or those alone that a finding of the report hides."""
    return tuple(skip for skip in report.skips if verbose or skip.covered_by)


def find_allowance(finding: Finding, report: Report) -> Allowance | None:
    """Return the policy's allowance of a finding: the one for the longest prefix of its code."""
    matching = [allowance for allowance in report.allowances if finding.code.startswith(allowance.code)]
    return max(matching, key=lambda allowance: len(allowance.code), default=None)


def describe_allowed(report: Report) -> Iterator[str]:
    """Yield a line for each finding that is allowed, by the baseline or by the policy, and why."""
    for finding in report.baselined:
        yield f"{_format_headline(finding)} (in the baseline)"
    for finding in report.allowed:
        allowance = find_allowance(finding, report)
        reason = f"until {allowance.until}: {allowance.reason}" if allowance else "by the policy"
        yield f"{_format_headline(finding)} ({reason})"


def _format_headline(finding: Finding) -> str:
    return f"{finding.code} {finding.severity}: {finding.message}"


def measured_questions(report: Report) -> tuple[OpenQuestion, ...]:
    """Return what the commands that measure left unanswered; other sections show their open questions themselves."""
    sections = [section for section in report.sections.values() if isinstance(section, MeasuredSection)]
    return tuple(question for section in sections for question in section.unanswered)


def describe_no_findings(report: Report) -> str:
    """Return what it means that there is no finding: nothing where nothing was measured."""
    if any(question.reason.startswith(NOTHING_MEASURED) for question in measured_questions(report)):
        return "nothing measured"
    return "nothing new found" if report.baselined or report.allowed else "nothing found"
