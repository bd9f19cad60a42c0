"""A finding in Markdown: its message, the evidence, its fixes, a link to its rule's page."""

from collections.abc import Iterator

from attncheck.core.findings import Finding
from attncheck.core.results.repair import RepairSection
from attncheck.report.finding_lines import fix_label, list_evidence, name_step, page_of
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block


def format_finding(finding: Finding, repair: RepairSection | None = None) -> Iterator[str]:
    """Yield the lines of a finding under its own heading; steps of `repair` are named, not repeated."""
    place = f"{finding.locations[0]}: " if finding.locations else ""
    yield from (f"### {escape_markdown(f'{finding.code} {finding.severity}: {place}{finding.message}')}", "")
    yield from (f"- {escape_line(line)}" for line in list_evidence(finding))
    for fix in finding.fixes:
        proven = f" (proven: {escape_markdown(fix.proven)})" if fix.proven else ""
        step = name_step(fix, repair)
        yield from ("", f"{fix_label(fix).capitalize()}: {escape_markdown(fix.title)}{step or proven}")
        if fix.text and not step:
            yield from ("", *format_code_block(fix.text))
    if page := page_of(finding.code):
        yield from ("", f"Page: {page}")
    yield ""
