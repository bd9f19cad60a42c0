"""Writes tables with captions and column heads that screen readers announce, and with room to scroll sideways."""

from collections.abc import Container, Iterable, Sequence

from attncheck.report.html_page.elements import Markup, element
from attncheck.report.html_page.room import clip, take_rows

MAX_ROWS = 400


def make_table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Markup]],
    omitted: int = 0,
    numbers: Container[str] = (),
    class_: str | None = None,
) -> Markup:
    """Return a table; a row consists of cells made by `row_head` and `cell`.

    `omitted` rows were dropped before those beyond `MAX_ROWS`; `numbers` are the titles of numeric columns.
    """
    written = (element("tr", *row) for row in rows)
    columns = [element("th", title, scope="col", class_="number" if title in numbers else None) for title in head]
    table = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", *columns)),
        element("tbody", *take_rows(written, MAX_ROWS, len(head), omitted)),
        class_=class_,
    )
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=caption)


def text_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], limit: int = MAX_ROWS) -> Markup:
    """Return a table of texts, of at most `limit` rows; the first cell of a row is its head."""
    texts = list(rows)
    written = ([row_head(row[0]), *map(cell, row[1:])] for row in texts[:limit])
    return make_table(caption, head, written, omitted=max(0, len(texts) - limit))


def row_head(text: str) -> Markup:
    """Return the head of a row."""
    return element("th", text if isinstance(text, Markup) else clip(text), scope="row")


def cell(text: str, class_: str | None = None) -> Markup:
    """Return a cell."""
    return element("td", text if isinstance(text, Markup) else clip(text), class_=class_)
