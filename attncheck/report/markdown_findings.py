"""A finding in Markdown: its message, what was seen, its fixes."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.report.finding_lines import fix_label
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block


def format_finding(finding: Finding) -> Iterator[str]:
    """Yield the lines of a finding under a heading of its own."""
    yield from (f"### {escape_markdown(f'{finding.code} {finding.severity}: {finding.message}')}", "")
    yield from (f"- {escape_line(line)}" for line in finding.evidence)
    for fix in finding.fixes:
        proven = f" (proven: {escape_markdown(fix.proven)})" if fix.proven else ""
        title = f"{fix_label(fix).capitalize()}: {escape_markdown(fix.title)}{proven}"
        yield from ("", title, "", *format_code_block(fix.text))
    yield ""
