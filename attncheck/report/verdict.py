"""The verdict on a whole report in one line, which is the first and the last line in every format."""

from collections.abc import Iterator

from attncheck.core.report import NOTHING_MEASURED, SEVERITIES, Report
from attncheck.report.finding_lines import count_by_code, measured_questions
from attncheck.report.sections import NOT_CHECKED, load_views

NO_RECOMMENDATION = "no recommendation"  # of bench: it is not a good result, nor a bad one
MAX_SENTENCE = 200  # maximum characters of a section's verdict


def describe_verdict(report: Report) -> str:
    """Return the verdict: "no problems (169 rules passed, 2 inconclusive)", "all 59 cases right, 3 backends"."""
    sentence = _section_verdict(report)
    findings = count_by_code(report.findings)
    rules = ", ".join(_count_rules(report))
    if sentence.startswith("gate:"):
        parts = [sentence]
    elif sentence or findings:
        parts = [findings, sentence] if sentence.startswith(NOT_CHECKED) else [sentence, findings]
    elif any(question.reason.startswith(NOTHING_MEASURED) for question in measured_questions(report)):
        parts = [NOTHING_MEASURED]
    else:
        rest = " in the rest" * bool(report.unanswered)
        new = "new " * bool(report.baselined or report.allowed)
        parts = [f"no {new}problems{rest}" + (f" ({rules})" if rules else "")]
        rules = ""
    if findings and all(finding.severity == "note" for finding in report.findings) and not sentence:
        parts.insert(0, "no errors or warnings")
    parts += [rules, *_list_unanswered(report)]
    return " · ".join(filter(None, parts))


def write_sentence(text: str) -> str:
    """Return a text that begins with a capital letter, unless it begins with a name: "train.sh", "--packing"."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


def judge_report(report: Report) -> str:
    """Return the most severe result in a report: "error", "warning", "note", "open", or "ok"."""
    severity = report.worst_severity()
    if severity in SEVERITIES:
        return severity or "note"
    sentence = _section_verdict(report)
    if report.unanswered or NOT_CHECKED in sentence:
        return "open"
    return "note" if NO_RECOMMENDATION in sentence else "ok"


def _section_verdict(report: Report) -> str:
    """Return the verdicts of the sections in one line, or the verdict of a section that covers the others."""
    views = load_views(report)
    shown = [pair for pair in views if pair[0].covers] or views
    sentences = filter(None, (view.verdict(report, section) for view, section in shown))
    return "; ".join(text if len(text) <= MAX_SENTENCE else f"{text[:MAX_SENTENCE]}…" for text in sentences)


def _count_rules(report: Report) -> Iterator[str]:
    """Yield how many rules passed, and how many were inconclusive."""
    allowed = len(report.baselined) + len(report.allowed)
    if report.passed or report.skips or report.suppressed:
        yield f"{len(report.passed)} rule{'s' * (len(report.passed) != 1)} passed"
    for number, word in (
        (len(report.skips), "inconclusive"),
        (len(report.suppressed), "switched off"),
        (allowed, "allowed"),
    ):
        if number:
            yield f"{number} {word}"


def _list_unanswered(report: Report) -> Iterator[str]:
    """Yield the checks that gave no result or an incomplete one."""
    for outcome in ("unanswered", "left out"):
        names = dict.fromkeys(question.name for question in report.unanswered if question.outcome == outcome)
        if names:
            yield f"{outcome}: {', '.join(names)}"
