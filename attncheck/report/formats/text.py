"""The report for people: measurements, faults with their reasons, and fixes to paste.

A terminal gets colours and wrapped lines, through rich. Otherwise each message is one unwrapped line, and rich is not
loaded, because the static lane runs in prologs and hooks. NO_COLOR and FORCE_COLOR take precedence over the terminal
(`attncheck.report.colours`); a file gets no colours.
"""

import io
import itertools
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from attncheck.core.io.visible import indent_continuation, show_line_ends
from attncheck.core.results.repair import RepairSection
from attncheck.report.blocks import (
    STYLES,
    Block,
    Bullets,
    Code,
    Curve,
    Heading,
    Items,
    Marks,
    Paragraph,
    Table,
    is_titled,
    style_of_answer,
)
from attncheck.report.colours import wants_colours
from attncheck.report.columns import GAP, column_widths, layout_table
from attncheck.report.excerpts import excerpt
from attncheck.report.finding_lines import (
    describe_allowed,
    describe_places,
    describe_skips,
    fix_label,
    list_evidence,
    measured_questions,
    merge_alike,
    name_step,
    page_of,
)
from attncheck.report.formats import Finding, Format, Report
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.lines import Line, column_line
from attncheck.report.sections import load_views
from attncheck.report.verdict import describe_verdict, judge_report

INDENT = 15  # "ATN140 warning ": the column where every text begins
MAX_WIDTH = 110
CONTINUATION = 4  # columns by which a text without a head is indented after a line end
MAX_EVIDENCE = 6  # lines of evidence per finding, without -v
MIN_TEXT_WIDTH = 20  # with fewer columns left for a text, indenting makes it worse
MAX_COLUMNS = 16  # maximum columns of a matrix
MARK_WIDTH, MAX_TITLE = 8, 36
BARS, MAX_BARS = "▁▂▃▄▅▆▇█", 40  # for drawing a curve
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
VERDICT_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "open": "yellow", "ok": "bold green"}


def render(report: Report, verbose: bool) -> str:
    """Return the report as text for standard output: wrapped for a terminal, coloured if appropriate."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_coloured = wants_colours(is_terminal)
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns) if is_terminal else MAX_WIDTH
    lines = [_keep_apart(line) for line in _format_lines(report, verbose, width)]
    if is_terminal or is_coloured:
        return _render_with_rich(lines, width, is_terminal, is_coloured)
    return _join_plain(lines)


def render_plain(report: Report, verbose: bool) -> str:
    """Return the report as text for a file: one line per message, without colours."""
    return _join_plain(_keep_apart(line) for line in _format_lines(report, verbose, MAX_WIDTH))


def _join_plain(lines: Iterable[Line]) -> str:
    return "".join("".join(text for text, _ in line.head) + line.text + "\n" for line in lines)


def _keep_apart(line: Line) -> Line:
    """Return a line whose continued text is indented, so that it cannot be mistaken for a line of the report."""
    head = tuple((show_line_ends(text), style) for text, style in line.head)
    columns = sum(len(text) for text, _ in head) or CONTINUATION
    return Line(head, indent_continuation(line.text, columns), line.no_wrap)


def _format_lines(report: Report, verbose: bool, width: int) -> Iterator[Line]:
    verdict = describe_verdict(report)
    yield Line(((verdict, VERDICT_STYLES[judge_report(report)]),)) if len(verdict) < width else Line(text=verdict)
    if interpreter := describe_interpreter(report):
        yield Line((("python  ", "bold"),), interpreter)
    views = load_views(report)
    covered = not verbose and any(view.covers for view, _ in views)
    for view, section in views:
        if view.covers or not covered:
            lines = list(format_blocks(view.blocks(report, section), verbose, width))
            yield from _begin_apart(lines)
    findings = merge_alike(report.findings)
    repair = report.section(RepairSection)
    for finding in findings:
        yield from _format_finding(finding, report, repair, verbose)
    if skips := list(describe_skips(report, verbose)):
        yield Line()
        yield from (Line(((f"{'':7}skipped ", "dim"),), text) for text in skips)
    for view, section in views:
        yield from _begin_apart(list(format_blocks(view.below(report, section), verbose, width)))
    if report.baselined or report.allowed:
        yield Line()
        yield from (Line((("allowed        ", "dim"),), text) for text in describe_allowed(report))
    if open_questions := measured_questions(report):
        yield Line()
        yield from (Line((("unanswered     ", "yellow"),), f"{q.name}: {q.reason}") for q in open_questions)
    yield Line()
    hints = [f"why: attncheck explain {findings[0].code}"] if findings else []
    hints += ["-v lists the inconclusive rules"] * bool(report.skips and not verbose)
    yield from [Line(text=" · ".join(hints))] * bool(hints)
    yield Line(text=verdict)


def _begin_apart(lines: list[Line]) -> Iterator[Line]:
    """Yield one blank line and then the lines; nothing if there are none."""
    start = next((index for index, line in enumerate(lines) if line != Line()), len(lines))
    if lines[start:]:
        yield from (Line(), *lines[start:])


def format_blocks(blocks: Iterable[Block], verbose: bool, width: int) -> Iterator[Line]:
    """Yield blocks as lines for a terminal `width` columns wide."""
    previous: Block = Heading("")
    for block in blocks:
        if isinstance(block, Items) and not isinstance(previous, Heading):
            yield Line()
        yield from _format_block(block, verbose, width)
        previous = block


def _format_block(block: Block, verbose: bool, width: int) -> Iterator[Line]:
    if isinstance(block, Paragraph):
        yield Line(text=block.text)
    elif isinstance(block, Heading):
        yield from (Line(), Line(((block.text, "bold"),)))
    elif isinstance(block, Bullets):
        yield from (Line((("  - ", "dim"),), line) for line in block.lines)
    elif isinstance(block, Items):
        yield from _format_items(block)
    elif isinstance(block, Table):
        yield from _format_table(block, verbose, width)
    elif isinstance(block, Code):
        if block.title:
            yield from (Line(), Line(text=f"{block.title}:"))
        styles = DIFF_STYLES if block.language == "diff" else {"#": "dim"}
        for line in block.text.splitlines():
            yield Line(
                (("    ", ""), (line, styles.get(line[:1], "bold" if block.language == "sh" else ""))), no_wrap=True
            )
    elif isinstance(block, Curve):
        yield from (Line(text=block.caption), column_line((draw_curve(block.values), "")))
    elif isinstance(block, Marks):
        yield from _format_marks(block, width)
    elif verbose:
        if not is_titled(block):
            yield from (Line(), Line(((block.title, "bold"),)))
        yield from format_blocks(block.blocks, verbose, width)
    elif block.brief:
        yield Line(text=block.brief if "-v" in block.brief else f"{block.brief} (-v lists them)")


def _format_items(block: Items) -> Iterator[Line]:
    mark_width = max((len(mark) for mark, _, _ in block.rows), default=0)
    mark_width = max(MARK_WIDTH, mark_width + 1) if mark_width else 0
    title_width = max(2, min(MAX_TITLE, max((len(title) for _, title, _ in block.rows), default=0)))
    for mark, title, text in block.rows:
        head = ((f"{mark:<{mark_width}}", style_of_answer(mark)), (f"{title:<{title_width}}  ", "bold"))
        yield Line(head, text)


def _format_table(block: Table, verbose: bool, width: int) -> Iterator[Line]:
    gap = " " if block.matrix else GAP
    if block.matrix:
        head = max(len(block.head), *(len(row.name) for row in block.rows))
        widths = column_widths(block.columns, block.rows)
        if len(widths) > MAX_COLUMNS or head + sum(widths) + len(widths) > width:
            yield from (Line(), Line(text=block.caption))
            yield from format_blocks(block.otherwise, verbose, width)
            return
    yield Line()
    if block.caption:
        yield Line(text=block.caption)
    room = 1 << 20 if block.matrix else width
    yield from layout_table(block.head, block.columns, block.rows, room, gap)


def _format_marks(block: Marks, width: int) -> Iterator[Line]:
    """Yield the marks of each row, wrapped for the terminal; neighbours with one style are one piece."""
    yield from (Line(), Line(text=block.caption))
    name_width = max(len(name) for name, _, _ in block.rows)
    room = max(20, width - name_width - 2)
    for name, _, marks in block.rows:
        for start in range(0, len(marks), room):
            pieces = itertools.groupby(marks[start : start + room], key=lambda pair: style_of_answer(pair[1]))
            texts = (("".join(mark for mark, _ in group), style) for style, group in pieces)
            yield column_line((f"{name if start == 0 else '':<{name_width}}  ", ""), *texts)


def draw_curve(values: Sequence[float]) -> str:
    """Return values as a line of bars, "" if none is finite."""
    finite = [value for value in values if value == value and abs(value) < 1e30]
    sampled = finite[:: max(1, -(-len(finite) // MAX_BARS))]
    low, high = min(sampled, default=0.0), max(sampled, default=0.0)
    return "".join(BARS[min(len(BARS) - 1, int((v - low) / ((high - low) or 1.0) * len(BARS)))] for v in sampled)


def _format_finding(finding: Finding, report: Report, repair: RepairSection | None, verbose: bool) -> Iterator[Line]:
    yield Line()
    place = f"{finding.locations[0]}: " if finding.locations else ""
    head = ((f"{finding.code} ", "bold"), (f"{finding.severity:<8}", STYLES[finding.severity]))
    yield Line(head, place + finding.message)
    for part in excerpt(report, finding.locations[0]) or () if finding.locations else ():
        yield Line(((" " * INDENT + part, "bold red" if part.lstrip().startswith("^") else ""),), no_wrap=True)
    lines = list_evidence(finding)
    shown = lines if verbose else lines[:MAX_EVIDENCE]
    for index, line in enumerate(shown):
        yield Line(((f"{'':7}{'because' if index == 0 else '':<8}", "dim"),), line)
    if len(lines) > len(shown):
        yield Line(((" " * INDENT, ""),), f"and {len(lines) - len(shown)} more lines (-v lists them)")
    for fix in finding.fixes:
        step = name_step(fix, repair)
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        style = "green" if fix.kind != "advice" else "cyan"
        yield Line(((f"{'':7}{fix_label(fix):<8}", style),), fix.title + (step or proven))
        for line in fix.text.splitlines() if not step and fix.text != fix.title else ():
            yield Line(((" " * INDENT + line, "bold"),), no_wrap=True)
    if places := describe_places(finding, report):
        yield Line(((f"{'':7}{'at':<8}", "dim"),), places)
    if page := page_of(finding.code):
        yield Line(((f"{'':7}{'page':<8}{page}", "dim"),), no_wrap=True)


def _render_with_rich(lines: Iterable[Line], width: int, is_wrapped: bool, is_coloured: bool) -> str:
    """Return `lines` in colours; if `is_wrapped`, each is wrapped to `width` and indented below its text."""
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    system: Literal["standard"] | None = "standard" if is_coloured else None
    console = Console(file=buffer, force_terminal=True, width=width, highlight=False, color_system=system)
    for line in lines:
        head = Text.assemble(*line.head)
        room = width - len(head)
        if line.no_wrap or not is_wrapped or room < MIN_TEXT_WIDTH:
            console.print(head + Text(line.text), soft_wrap=line.no_wrap or not is_wrapped)
            continue
        parts = Text(line.text).wrap(console, room) or [Text()]
        console.print(Text("\n" + " " * len(head)).join([head + parts[0], *parts[1:]]))
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


FORMAT = Format(render, render_plain=render_plain)
