"""The report in Markdown, for an issue or a pull request: what was measured, findings with their fixes."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.report.finding_lines import describe_allowed, list_skips, measured_questions
from attncheck.report.formats import Format
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.markdown_findings import format_finding
from attncheck.report.markdown_text import escape_line, escape_markdown
from attncheck.report.sections import load_view


def render(report: Report, verbose: bool) -> str:
    """Return the report as Markdown; `verbose` lists what could not be judged too."""
    return "\n".join(_format_lines(report, verbose)).rstrip() + "\n"


def _format_lines(report: Report, verbose: bool) -> Iterator[str]:
    yield from (f"# attncheck {escape_markdown(report.command)}", "")
    if interpreter := describe_interpreter(report):
        yield from (f"Python {escape_line(interpreter)}", "")
    for name, section in report.sections.items():
        yield from load_view(name).markdown(report, section)
    yield from ("## Findings", "")
    if not report.findings:
        yield "None."
    for finding in report.findings:
        yield from format_finding(finding)
    if measured_questions(report):
        yield from ("", "## Unanswered", "")
        yield from (f"- {escape_line(f'{q.name}: {q.reason}')}" for q in measured_questions(report))
        yield ""
    if report.baselined or report.allowed:
        yield from ("## Allowed", "", *(f"- {escape_line(line)}" for line in describe_allowed(report)), "")
    if skips := list_skips(report, verbose):
        yield from ("## Not judged", "")
        yield from (f"- {escape_line(f'{skip.code} {skip.name}: {skip.reason}')}" for skip in skips)


FORMAT = Format(render)
