"""GitHub's annotations, one workflow command per finding, and the Markdown of a job summary.

Escaping follows actions/toolkit 4b9afa4, packages/core/src/command.ts (`escapeData`, `escapeProperty`). GitHub shows
only ten annotations of a level for each step, so the most severe come first and the rest are counted.
"""

import re
from collections.abc import Iterator

from attncheck.core.io.streams import break_workflow_commands
from attncheck.core.io.visible import show_line_ends
from attncheck.core.report import SEVERITIES, Finding, Report, Severity
from attncheck.report.finding_lines import describe_finding, measured_questions
from attncheck.report.formats import Format
from attncheck.report.locations import add_locations, path_in_checkout, working_directory
from attncheck.report.verdict import describe_verdict

COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}
MAX_ANNOTATIONS = 10  # per level and step
SUMMARY_BYTES = 1 << 20  # for everything that one step adds
CUT_NOTE = "\n\n*The rest does not fit into a job summary.*\n"


def render(report: Report, verbose: bool) -> str:
    """Return the workflow commands; `verbose` adds the number of inconclusive rules, as a line without a command."""
    return "".join(f"{line}\n" for line in _format_lines(add_locations(report, working_directory()), verbose))


def _format_lines(report: Report, verbose: bool) -> Iterator[str]:
    for severity in SEVERITIES:
        for finding in [finding for finding in report.findings if finding.severity == severity][:MAX_ANNOTATIONS]:
            yield format_annotation(finding)
    yield _describe_counts(report)
    if verbose and report.skips:
        yield f"attncheck: {len(report.skips)} rules were inconclusive"


def format_annotation(finding: Finding) -> str:
    """Return a finding as a workflow command."""
    location = next((location for location in finding.locations if path_in_checkout(location.source)), None)
    parameters = {"title": f"{finding.code} {finding.name}"}
    if location is not None:
        position = {"line": str(location.line), "col": str(location.column)}
        if location.end_line == location.line:
            position["endColumn"] = str(location.end_column)
        elif location.end_line:  # columns are only allowed in annotations of one line (REST API, "Create a check run")
            position = {"line": str(location.line), "endLine": str(location.end_line)}
        parameters = {"file": path_in_checkout(location.source), **position, **parameters}
    written_parameters = ",".join(f"{key}={_escape_property(value)}" for key, value in parameters.items())
    return f"::{COMMANDS[finding.severity]} {written_parameters}::{_escape_data(describe_finding(finding))}"


def _describe_counts(report: Report) -> str:
    """Return in one line how many findings there are, and how many of them are not among the annotations.

    The line is never a command, whatever a saved report calls its own command.
    """
    questions = [f"{question.name}: {question.reason}" for question in measured_questions(report)]
    listed = ", ".join([describe_verdict(report), *questions])
    omitted = sum(max(n - MAX_ANNOTATIONS, 0) for n in report.count_by_severity().values())
    more = f"; {omitted} of them not annotated: GitHub shows {MAX_ANNOTATIONS} of a level" * bool(omitted)
    return break_workflow_commands(show_line_ends(f"attncheck {report.command}: {listed}{more}"))


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def format_job_summary(report: Report, max_bytes: int = SUMMARY_BYTES) -> str:
    """Return the report in Markdown for GITHUB_STEP_SUMMARY, cut after a line if it exceeds `max_bytes`."""
    from attncheck.report.formats import markdown

    document = markdown.render(report, True)
    encoded = document.encode("utf-8", "backslashreplace")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    longest_fence = max((len(fence) for fence in re.findall("^`{3,}", document, re.MULTILINE)), default=0)
    kept = encoded[: max(max_bytes - len(CUT_NOTE) - longest_fence - len("\n\n"), 0)]
    text = kept[: kept.rfind(b"\n") + 1].decode("utf-8", "ignore")
    fence = _find_open_fence(text)
    return (text + (fence and fence + "\n") + CUT_NOTE) if max_bytes > len(CUT_NOTE) else ""


def _find_open_fence(text: str) -> str:
    """Return the fence of the code block that `text` ends in, "" if it ends in none."""
    fence = ""
    for line in text.splitlines():
        if not fence and line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
        elif fence and line == fence:
            fence = ""
    return fence


FORMAT = Format(render, "commands")
