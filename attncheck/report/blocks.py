"""The neutral blocks of a report's sections; text, Markdown and the page each write them in their own way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.report.columns import Column, Row

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "open": "yellow",
    "ok": "green",
    "passed": "green",
    "right": "green",
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "failed": "bold red",
    "wrong": "bold red",
    "lost": "bold red",
    "no answer": "yellow",
}
SHADE_STYLE = "green"  # style of a heat map's cell whose shade depends on its number


@dataclass(frozen=True)
class Paragraph:
    """A line of running text; `strong` if it is the main result."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Heading:
    """The title of the blocks below it."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Short lines, one below another."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Items:
    """Rows of a mark ("ok", "error"; "" for none), a title and a text; `head` has the titles of these columns."""

    rows: tuple[tuple[str, str, str], ...]
    head: tuple[str, str, str] = ("state", "what", "details")


@dataclass(frozen=True)
class Bar:
    """A share of a full bar, from 0 to 1, its class, and a mark at another share (0: no mark)."""

    share: float
    style: str = "plain"
    mark: float = 0.0


@dataclass(frozen=True)
class Table:
    """A table of measured numbers. `bars` are drawn on the page under a column's cells, one per row, by column title.

    `heat` colours the cells by their styles. A `matrix` is shown whole; if it is too wide, `otherwise` is shown
    instead.
    """

    caption: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    bars: Mapping[str, Sequence[Bar | None]] = field(default_factory=dict)
    heat: bool = False
    matrix: bool = False
    otherwise: "tuple[Block, ...]" = ()
    page_rows: int = 400  # the maximum on the page


@dataclass(frozen=True)
class Code:
    """Text to paste, or a diff, under its title."""

    title: str
    text: str
    language: str = ""


@dataclass(frozen=True)
class Fold:
    """Details: text and Markdown show them with --verbose only, otherwise `brief`.

    The page folds them unless `opened`.
    """

    title: str
    blocks: "tuple[Block, ...]"
    brief: str = ""
    opened: bool = False


@dataclass(frozen=True)
class Curve:
    """Values by step, and levels to compare them with, each with the class of its line."""

    caption: str
    values: tuple[float, ...]
    levels: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Marks:
    """One mark for each case, in order: rows of a name, a summary and (mark, answer) pairs."""

    caption: str
    rows: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]


Block = Paragraph | Heading | Bullets | Items | Table | Code | Fold | Curve | Marks


def style_of_answer(answer: str) -> str:
    """Return the style of a severity, or of a verdict's answer."""
    return STYLES.get(answer, "dim")


def is_titled(fold: Fold) -> bool:
    """Return whether a fold contains one table or text that has its own title."""
    only = fold.blocks[0] if len(fold.blocks) == 1 else None
    return bool(only.caption if isinstance(only, Table) else isinstance(only, Code) and only.title)


def make_table(
    caption: str,
    head: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    bars: Mapping[str, Sequence[Bar | None]] | None = None,
) -> Table:
    """Return a table without columns that are empty in every row."""
    kept_rows = tuple(rows)
    used = [
        i for i, _ in enumerate(columns) if any(row.cells and row.cells[i][0] not in ("", "-") for row in kept_rows)
    ]
    shown = tuple(Row(row.name, tuple(row.cells[i] for i in used if row.cells), row.note) for row in kept_rows)
    return Table(caption, head, tuple(columns[i] for i in used), shown, bars or {})


def text_rows(rows: Iterable[Sequence[str]]) -> tuple[Row, ...]:
    """Return rows of plain texts; the first text of each row is its name."""
    return tuple(Row(name, tuple((text, "") for text in texts)) for name, *texts in rows)


def text_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of left-aligned texts."""
    return Table(caption, titles[0], tuple(Column(title, left=True) for title in titles[1:]), text_rows(rows))
