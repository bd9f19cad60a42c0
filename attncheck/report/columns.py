"""Lays out a table for a terminal: columns are at least two spaces apart, whatever their cells contain.

A column is as wide as its widest cell. If not all fit into the terminal, those with the highest rank are dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.report.lines import Line, StyledText, column_line

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table; ranks 0 and 1 are never dropped."""

    title: str
    rank: int = 0
    left: bool = False  # left-aligned, for texts; numbers are right-aligned


@dataclass(frozen=True)
class Row:
    """A row: its name, and (text, style) for each column; or `note`, why it has no cells."""

    name: str
    cells: StyledText = ()
    note: tuple[str, str] = ("", "")


def layout_table(
    head: str, columns: Sequence[Column], rows: Sequence[Row], width: int, gap: str = GAP
) -> Iterator[Line]:
    """Yield the table for a terminal `width` columns wide; `head` is the title of the names."""
    name_width = max(len(head), *(len(row.name) for row in rows)) if rows else len(head)
    widths = column_widths(columns, rows)
    shown = choose_columns(columns, widths, width - name_width)

    def pad(text: str, index: int) -> str:
        if not columns[index].left:
            return gap + f"{text:>{widths[index]}}"
        return gap + (text if index == shown[-1] else f"{text:<{widths[index]}}")

    titles = "".join(pad(columns[index].title, index) for index in shown)
    yield column_line((f"{head:<{name_width}}", "bold"), (titles.rstrip(), "bold"))
    for row in rows:
        name = (f"{row.name:<{name_width}}", "")
        if row.cells:
            yield column_line(name, *((pad(row.cells[index][0], index), row.cells[index][1]) for index in shown))
        else:
            yield column_line(name, (GAP + row.note[0], row.note[1]))


def column_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """Return the width of each column in characters: the width of its widest cell."""
    return [
        max(len(text) for text in (column.title, *(row.cells[index][0] for row in rows if row.cells)))
        for index, column in enumerate(columns)
    ]


def choose_columns(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit into `room` characters."""
    shown = list(range(len(columns)))
    for index in sorted(shown, key=lambda index: -columns[index].rank):
        if sum(len(GAP) + widths[other] for other in shown) <= room or columns[index].rank < 2:
            break
        shown.remove(index)
    return shown
