"""Keeps the page small for a report of any length: it counts what it omits; the JSON document has everything."""

from collections.abc import Iterable, Iterator

from attncheck.report.html_page.elements import Markup, element

MAX_TEXT = 2000  # characters of a text to read, not to paste
FINDINGS_BYTES = 150_000
PANELS_BYTES = 200_000  # for all sections together
ENVIRONMENT_BYTES = 40_000
BUG_REPORT_BYTES = 60_000  # as written, including escapes
REST = "not shown here; the JSON report (--output json=FILE) is complete"


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text cut to `limit` characters, with the number of missing ones."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"


def byte_size(text: str) -> int:
    """Return how many bytes a text takes in a file."""
    return len(text.encode("utf-8", "backslashreplace"))


def take_blocks(blocks: Iterable[Markup], limit: int) -> Markup:
    """Return the blocks that fit into `limit` bytes, in order; after the first that does not fit, only small ones."""
    taken, omitted, left = [], 0, limit
    for block in blocks:
        size = byte_size(block)
        if size <= left:
            taken.append(block)
            left -= size
        else:
            omitted += 1
    if omitted:
        taken.append(element("p", f"{omitted} part{'s' * (omitted > 1)} {REST}", class_="dim"))
    return Markup("\n".join(taken))


def take_rows(rows: Iterable[Markup], limit: int, columns: int, omitted: int = 0) -> Iterator[Markup]:
    """Yield at most `limit` rows of a table, and one that counts the others and the `omitted` ones."""
    for number, row in enumerate(rows):
        if number < limit:
            yield row
        else:
            omitted += 1
    if omitted:
        text = f"{omitted} more row{'s' * (omitted > 1)} {REST}"
        yield element("tr", element("td", text, colspan=columns, class_="dim"))
