"""Which tokens a launch trains on: a table by role, and the first rows with ⟦learned⟧ tokens marked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.labels import ROLE_TEXTS, LabelledLaunch, LabelsSection, Span
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block, format_table
from attncheck.report.sections import SectionView

SHOWN_ROWS = 1  # without --verbose
OPEN, CLOSE = "⟦", "⟧"


def rows(report: Report, section: LabelsSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield each launch's table and its first rows."""
    for number, launch in enumerate(section.launches):
        if number:
            yield Line()
        yield text_line(describe_launch(launch))
        for remark in launch.remarks:
            yield text_line(f"  {remark}")
        if launch.reason:
            yield text_line(f"  not known: {launch.reason}")
            continue
        yield text_line(f"  it means to learn {launch.targets}")
        for count in launch.counts:
            share = f"{count.learned} of {count.tokens} tokens learned"
            yield column_line(("    ", ""), (f"{ROLE_TEXTS[count.role]:26}", ""), (share, "bold" * bool(count.learned)))
        for note in launch.notes:
            yield text_line(f"  {note}")
        shown = launch.rows if verbose else launch.rows[:SHOWN_ROWS]
        for place, spans in enumerate(shown, 1):
            yield text_line(f"  row {place} of {launch.total_rows}, learned tokens between {OPEN} {CLOSE}:")
            for line in format_row(spans):
                yield column_line(("    ", ""), (line, ""))


def describe_launch(launch: LabelledLaunch) -> str:
    """Return a launch in one line."""
    name = " ".join(filter(None, (launch.framework, launch.version, launch.trainer)))
    return f"{launch.location}: {name}" + (f" · tokenizer of {launch.tokenizer}" if launch.tokenizer else "")


def format_row(spans: Sequence[Span]) -> list[str]:
    """Return a row's text in lines, what is learned between brackets; what repeats as padding is counted."""
    parts = []
    for learned, group in itertools.groupby(spans, key=lambda span: span.learned):
        text = "".join(
            f"…{span.tokens} × padding…" if span.role == "padding" and span.tokens > 1 else span.text for span in group
        )
        parts.append(f"{OPEN}{text}{CLOSE}" if learned else text)
    return "".join(parts).splitlines() or [""]


def markdown(report: Report, section: LabelsSection) -> Iterator[str]:
    """Yield each launch with its table and rows."""
    for launch in section.launches:
        yield from (f"## {escape_markdown(describe_launch(launch))}", "")
        for line in (*launch.remarks, *launch.notes, *([f"not known: {launch.reason}"] if launch.reason else [])):
            yield from (escape_line(line), "")
        if launch.reason:
            continue
        yield from (f"It means to learn {launch.targets}.", "")
        counts = [(ROLE_TEXTS[count.role], str(count.tokens), str(count.learned)) for count in launch.counts]
        yield from (*format_table(("role", "tokens", "learned"), counts), "")
        for spans in launch.rows:
            yield from (*format_code_block("\n".join(format_row(spans))), "")


VIEW = SectionView(rows=rows, beside=rows, markdown=markdown)
