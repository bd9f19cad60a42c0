"""Writes tables with captions and column heads that screen readers announce, and with room to scroll sideways."""

from collections.abc import Container, Iterable, Sequence

from attncheck.report.html_page.elements import MAX_WORD, Markup, element, flow
from attncheck.report.html_page.room import clip, take_rows

MAX_ROWS = 400
LONG = 24  # characters; a longer text of several words gets room


def make_table(
    caption: str | None,
    head: Sequence[str],
    rows: Iterable[Sequence[Markup]],
    omitted: int = 0,
    numbers: Container[str] = (),
    class_: str | None = None,
) -> Markup:
    """Return a table; a row consists of cells made by `row_head` and `cell`.

    Without a caption, the first title names the table to screen readers, and nobody reads it twice.
    `omitted` rows were dropped before those beyond `MAX_ROWS`; `numbers` are the titles of numeric columns.
    """
    written = (element("tr", *row) for row in rows)
    columns = [element("th", flow(title), scope="col", class_="number" if title in numbers else None) for title in head]
    name = caption or head[0][:1].upper() + head[0][1:]
    table = element(
        "table",
        element("caption", element("span", name), class_=None if caption else "unseen"),
        element("thead", element("tr", *columns)),
        element("tbody", *take_rows(written, MAX_ROWS, len(head), omitted)),
        class_=class_,
    )
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=name)


def text_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], limit: int = MAX_ROWS) -> Markup:
    """Return a table of texts, of at most `limit` rows; the first cell of a row is its head."""
    texts = list(rows)
    written = ([row_head(row[0]), *map(cell, row[1:])] for row in texts[:limit])
    return make_table(caption, head, written, omitted=max(0, len(texts) - limit))


def row_head(text: str) -> Markup:
    """Return the head of a row."""
    return element("th", flow(clip(text)), class_=_room(text), scope="row")


def cell(text: str, class_: str = "", drawn: str = "") -> Markup:
    """Return a cell, with what is drawn below its text."""
    classes = class_ if isinstance(text, Markup) else f"{class_} {_room(text) or ''}".strip()
    return element("td", flow(clip(text)), drawn, class_=classes or None)


def _room(text: str) -> str | None:
    """Return the class that keeps a text of several words, or a long name, from getting one word a line."""
    if len(text) > LONG and " " in text:
        return "long"
    return "name" if len(text) > MAX_WORD else None
