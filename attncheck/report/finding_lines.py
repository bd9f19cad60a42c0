"""Findings as plain lines of text, shared by several formats: JUnit, GitHub's annotations, Markdown, text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from attncheck.core.io.visible import indent_continuation
from attncheck.core.lists import group_values
from attncheck.core.report import SEVERITIES, Allowance, Finding, Fix, MeasuredSection, OpenQuestion, Report
from attncheck.core.results.lint import launches_of
from attncheck.core.results.repair import RepairSection

RULES_URL = "https://github.com/attncheck/attncheck/blob/main/docs/rules.md"
MAX_PLACES = 5  # places shown for a finding in several launches
MIN_REPEATED = 20  # a shorter line is shown even if the message contains it
MAX_CODES = 5  # codes in a line that only counts findings
MAX_SKIPS = 5  # rules listed for one reason, without -v
INDENT = 6  # columns by which continued lines are indented, so that they do not start like "because: " or "fix: "


def describe_finding(finding: Finding) -> str:
    """Return a finding's message, its evidence and its fixes, in lines."""
    return "\n".join((indent_continuation(finding.message, INDENT), *evidence_and_fixes(finding)))


def evidence_and_fixes(finding: Finding) -> Iterator[str]:
    """Yield the lines of a finding's evidence, then those of its fixes."""
    yield from (indent_continuation(f"because: {line}", INDENT) for line in finding.evidence)
    for fix in finding.fixes:
        title = f"{fix_label(fix)}: {fix.title}" + (f" (proven: {fix.proven})" if fix.proven else "")
        yield indent_continuation(title, INDENT)
        yield from (f"    {line}" for line in fix.text.splitlines())


def describe_places(finding: Finding, report: Report) -> str:
    """Return where a finding is, "" if the report has fewer than two launches: "a.sh:3:1, b.sh:4:5 and 12 more"."""
    if len(launches_of(report)) < 2 or not finding.locations:
        return ""
    places = [str(location) for location in finding.locations]
    rest = len(places) - MAX_PLACES
    return ", ".join(places[:MAX_PLACES]) + (f" and {rest} more" if rest > 0 else "")


def fix_label(fix: Fix) -> str:
    """Return the label of a fix in a report: "next" if it changes nothing, but helps to find the cause."""
    return "next" if fix.kind == "advice" else "fix"


def count_severities(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the number of findings of each severity that occurs: "2 errors", "1 note"."""
    counts = Counter(finding.severity for finding in findings)
    for severity in SEVERITIES:
        if counts[severity]:
            yield f"{counts[severity]} {severity}{'s' * (counts[severity] > 1)}"


def count_findings(findings: Sequence[Finding]) -> str:
    """Return the number of findings and their codes in a few words: "2 errors, ATN101, ATN142"."""
    codes = list(dict.fromkeys(finding.code for finding in findings))
    more = [f"{len(codes) - MAX_CODES} more"] if len(codes) > MAX_CODES else []
    return ", ".join([*count_severities(findings), *codes[:MAX_CODES], *more])


def count_by_code(findings: Sequence[Finding]) -> str:
    """Return the number of findings by severity, errors and warnings with their codes: "1 error (ATN301), 1 note"."""
    parts = []
    for severity in SEVERITIES:
        codes = [finding.code for finding in findings if finding.severity == severity]
        names = list(dict.fromkeys(codes))
        more = [f"{len(names) - MAX_CODES} more"] if len(names) > MAX_CODES else []
        listed = f" ({', '.join([*names[:MAX_CODES], *more])})" if severity != "note" else ""
        parts += [f"{len(codes)} {severity}{'s' * (len(codes) > 1)}{listed}"] if codes else []
    return ", ".join(parts)


def merge_alike(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in order; those with one message about several subjects become one that lists them."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.code, finding.severity, _replace_subject(finding, finding.message, ""))
        groups.setdefault(key, []).append(finding)
    return tuple(finding for group in groups.values() for finding in _merge(group))


def _subject_name(finding: Finding) -> str:
    return (finding.subject.split() or [""])[0]


def _replace_subject(finding: Finding, text: str, other: str) -> str:
    name = _subject_name(finding)
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: other, text) if name else text


def _merge(group: Sequence[Finding]) -> Sequence[Finding]:
    """Return findings with one message as one, with each line of evidence and each kind of fix once."""
    first = group[0]
    if len({finding.subject for finding in group}) < 2:
        return group
    names = ", ".join(dict.fromkeys(map(_subject_name, group)))
    message = _replace_subject(first, first.message, names)
    shared = set.intersection(*(set(finding.evidence) for finding in group))
    evidence = (
        line if line in shared or _subject_name(finding) in line else f"{_subject_name(finding)}: {line}"
        for finding in group
        for line in finding.evidence
    )
    fixes: dict[str, Fix] = {}
    for finding in group:
        for fix in finding.fixes:
            fixes.setdefault(_replace_subject(finding, f"{fix.title}\n{fix.text}", ""), fix)
    merged = replace(
        first,
        message=message if names in message else f"{message} ({names})",
        subject=names,
        evidence=tuple(dict.fromkeys(evidence)),
        fixes=tuple(fixes.values()),
        locations=tuple(dict.fromkeys(location for finding in group for location in finding.locations)),
    )
    return (merged,)


def list_evidence(finding: Finding) -> list[str]:
    """Return the distinct lines of evidence that are not already in the message."""

    def is_repeated(line: str) -> bool:
        rest = line.partition(": ")[2]  # the text after the model or the lane that it belongs to
        return line in finding.message or (len(rest) >= MIN_REPEATED and rest in finding.message)

    return [line for line in dict.fromkeys(finding.evidence) if not is_repeated(line)]


def name_step(fix: Fix, repair: RepairSection | None) -> str:
    """Return " (step 2 below)" if the fix is a step of the report's repair, which prints its command; otherwise ""."""
    if repair is None or not is_joint(repair):
        return ""
    steps = [number for number, step in enumerate(repair.steps, 1) if step.command == fix.text]
    return f" (step {steps[0]} below)" if steps and fix.kind == "command" else ""


def is_joint(repair: RepairSection) -> bool:
    """Return whether the repair is more than the fix of one finding."""
    tried = repair.resolution or repair.trial
    return bool(repair.steps) and bool(len(repair.steps) > 1 or len(repair.targets) > 1 or repair.conflicts or tried)


def page_of(code: str) -> str:
    """Return the address of a rule's page, "" for a plugin's rule."""
    return f"{RULES_URL}#{code.lower()}" if re.fullmatch(r"ATN\d{3}", code) else ""


def find_allowance(finding: Finding, report: Report) -> Allowance | None:
    """Return the policy's allowance for a finding: the one with the longest matching prefix of its code."""
    matching = [allowance for allowance in report.allowances if finding.code.startswith(allowance.code)]
    return max(matching, key=lambda allowance: len(allowance.code), default=None)


def describe_allowed(report: Report) -> Iterator[str]:
    """Yield a line for each finding that the baseline or the policy allows, with the reason."""
    for finding in report.baselined:
        yield f"{_format_headline(finding)} (in the baseline)"
    for finding in report.allowed:
        allowance = find_allowance(finding, report)
        reason = f"until {allowance.until}: {allowance.reason}" if allowance else "by the policy"
        yield f"{_format_headline(finding)} ({reason})"


def _format_headline(finding: Finding) -> str:
    return f"{finding.code} {finding.severity}: {finding.message}"


def measured_questions(report: Report) -> tuple[OpenQuestion, ...]:
    """Return the questions that measuring commands left open; other sections show theirs themselves."""
    sections = [section for section in report.sections.values() if isinstance(section, MeasuredSection)]
    return tuple(question for section in sections for question in section.unanswered)


def describe_skips(report: Report, verbose: bool) -> Iterator[str]:
    """Yield a line for each reason why rules are inconclusive: all if `verbose`, else those that a finding blocks.

    One missing fact blocks many rules.
    """
    rules_by_reason = group_values(
        (skip.reason, f"{skip.code} {skip.name}") for skip in report.skips if verbose or skip.covered_by
    )
    for reason, rules in rules_by_reason.items():
        hidden = 0 if verbose else max(0, len(rules) - MAX_SKIPS)
        more = f" and {hidden} more (-v lists them)" if hidden else ""
        yield f"{reason}: {', '.join(rules[: len(rules) - hidden])}{more}"
