"""The report in Markdown, for an issue or a pull request: the verdict, measurements, and findings with their fixes."""

from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.results.repair import RepairSection
from attncheck.report.blocks import Block, Bullets, Code, Curve, Fold, Heading, Items, Paragraph, Table, is_titled
from attncheck.report.finding_lines import describe_allowed, describe_skips, measured_questions, merge_alike
from attncheck.report.formats import Format, Report
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.markdown_findings import format_finding
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block, format_table
from attncheck.report.sections import load_views
from attncheck.report.verdict import describe_verdict, write_sentence

MAX_COLUMNS = 16  # maximum columns of a matrix


def render(report: Report, verbose: bool) -> str:
    """Return the report as Markdown; `verbose` adds details and the inconclusive rules."""
    return "\n".join(_format_lines(report, verbose)).rstrip() + "\n"


def _format_lines(report: Report, verbose: bool) -> Iterator[str]:
    verdict = describe_verdict(report)
    sentence = f"{write_sentence(verdict)}."
    yield from (f"# attncheck {escape_markdown(report.command)}", "", escape_line(sentence), "")
    if interpreter := describe_interpreter(report):
        yield from (f"Python {escape_line(interpreter)}", "")
    views = load_views(report)
    for view, section in views:
        yield from _format_blocks(view.blocks(report, section), verbose)
    if report.findings:
        yield from ("## Findings", "")
    repair = report.section(RepairSection)
    for finding in merge_alike(report.findings):
        yield from format_finding(finding, repair)
    for view, section in views:
        yield from _format_blocks(view.below(report, section), verbose)
    yield from _list("Unanswered", (f"{q.name}: {q.reason}" for q in measured_questions(report)))
    yield from _list("Allowed", describe_allowed(report))
    yield from _list("Inconclusive", describe_skips(report, verbose))
    yield escape_line(sentence)


def _list(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a list under a heading; nothing if there are none."""
    if items := [f"- {escape_line(line)}" for line in lines]:
        yield from (f"## {title}", "", *items, "")


def _format_blocks(blocks: Iterable[Block], verbose: bool) -> Iterator[str]:
    for block in blocks:
        yield from _format_block(block, verbose)


def _format_block(block: Block, verbose: bool) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield from (escape_line(block.text), "")
    elif isinstance(block, Heading):
        yield from _head(block.text)
    elif isinstance(block, Bullets):
        if block.lines:
            yield from (*(f"- {escape_line(line)}" for line in block.lines), "")
    elif isinstance(block, Items):
        yield from _format_rows(block.head, block.rows)
    elif isinstance(block, Table):
        yield from _head(block.caption)
        if block.matrix and len(block.columns) > MAX_COLUMNS:
            yield from _format_blocks(block.otherwise, verbose)
            return
        titles = (block.head, *(column.title for column in block.columns))
        rows = ((row.name, *(text for text, _ in row.cells or (row.note,))) for row in block.rows)
        yield from (*format_table(titles, rows), "")
    elif isinstance(block, Code):
        yield from (*_head(block.title), *format_code_block(block.text, block.language), "")
    elif isinstance(block, Curve):
        yield from (escape_line(block.caption), "")
    elif isinstance(block, Fold):
        if verbose:
            title = "" if is_titled(block) else block.title
            yield from (*_head(title), *_format_blocks(block.blocks, verbose))
        elif block.brief:
            yield from (f"{escape_line(block.brief)}; see the JSON report.", "")


def _head(title: str) -> Iterator[str]:
    if title:
        yield from (f"## {escape_markdown(title[0].upper() + title[1:])}", "")


def _format_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as a table without columns that are empty in all of them."""
    used = [index for index in range(len(head)) if any(row[index] for row in rows)]
    yield from format_table([head[index] for index in used], [[row[index] for index in used] for row in rows])
    yield ""


FORMAT = Format(render)
