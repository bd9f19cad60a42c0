"""The report in Markdown, for an issue or a pull request: what was measured, findings with their fixes."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.report.finding_lines import let_pass
from attncheck.report.formats import Format
from attncheck.report.markdown_text import code_block, escaped
from attncheck.report.sections import load_view


def render(report: Report, verbose: bool) -> str:
    """Return the report as Markdown; `verbose` lists what could not be judged too."""
    return "\n".join(_lines(report, verbose)).rstrip() + "\n"


def _lines(report: Report, verbose: bool) -> Iterator[str]:
    yield from (f"# attncheck {report.command}", "")
    for name, section in report.sections.items():
        yield from load_view(name).markdown(report, section)
    yield from ("## Findings", "")
    if not report.findings:
        yield "None."
    for finding in report.findings:
        yield from _finding(finding)
    if report.baselined or report.allowed:
        yield from ("## Let pass", "", *(f"- {escaped(line)}" for line in let_pass(report)), "")
    if verbose and report.skips:
        yield from ("## Not judged", "")
        yield from (f"- {skip.code} {skip.name}: {escaped(skip.reason)}" for skip in report.skips)


def _finding(finding: Finding) -> Iterator[str]:
    yield from (f"### {finding.code} {finding.severity}: {escaped(finding.message)}", "")
    yield from (f"- {escaped(line.strip())}" for line in finding.evidence)
    for fix in finding.fixes:
        proven = f" (proven: {escaped(fix.proven)})" if fix.proven else ""
        yield from ("", f"Fix: {escaped(fix.title)}{proven}", "", *code_block(fix.text))
    yield ""


FORMAT = Format(render)
