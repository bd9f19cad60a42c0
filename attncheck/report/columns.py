"""Lays out a table whose columns stand at least two spaces apart, whatever its cells hold.

A column is as wide as its widest cell. Where not all fit into the terminal, those of the highest rank are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.report.lines import Line, StyledText, column_line

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table; ranks 0 and 1 always stay."""

    title: str
    rank: int = 0
    left: bool = False  # texts begin below one another; numbers end so


@dataclass(frozen=True)
class Row:
    """A row: its name, and (text, style) for each column; or `note`, why there are none."""

    name: str
    cells: StyledText = ()
    note: tuple[str, str] = ("", "")


def layout_table(head: str, columns: Sequence[Column], rows: Sequence[Row], width: int) -> Iterator[Line]:
    """Yield the table for a terminal `width` columns wide; `head` is the title of the names."""
    name_width = max(len(head), *(len(row.name) for row in rows)) if rows else len(head)
    widths = [
        max(len(text) for text in (column.title, *(row.cells[index][0] for row in rows if row.cells)))
        for index, column in enumerate(columns)
    ]
    shown = choose_columns(columns, widths, width - name_width)
    titles = "".join(_pad_cell(columns[index].title, widths[index], columns[index]) for index in shown)
    yield column_line((f"{head:<{name_width}}", "bold"), (titles.rstrip(), "bold"))
    for row in rows:
        name = (f"{row.name:<{name_width}}", "")
        if not row.cells:
            yield column_line(name, (GAP + row.note[0], row.note[1]))
            continue
        cells = [(row.cells[index], index) for index in shown]
        yield column_line(name, *((_pad_cell(text, widths[i], columns[i]), style) for (text, style), i in cells))


def choose_columns(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit into `room` characters."""
    shown = list(range(len(columns)))
    for index in sorted(shown, key=lambda index: -columns[index].rank):
        if sum(len(GAP) + widths[other] for other in shown) <= room or columns[index].rank < 2:
            break
        shown.remove(index)
    return shown


def _pad_cell(text: str, width: int, column: Column) -> str:
    return GAP + (f"{text:<{width}}" if column.left else f"{text:>{width}}")
