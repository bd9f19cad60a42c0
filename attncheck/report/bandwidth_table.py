"""The bandwidth between every two ranks or nodes: a matrix, and the slowest links, for text, Markdown and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attncheck.core.results.collectives import Communication
from attncheck.report.lines import Line, column_line, text_line
from attncheck.report.markdown_text import escape_line, format_table
from attncheck.ring.bandwidth_map import (
    BandwidthMap,
    Grade,
    LinkBandwidth,
    describe_link,
    describe_outlier,
    find_outliers,
    make_map,
)

MAX_COLUMNS = 16  # of a matrix in text and Markdown
MAX_SLOWEST = 5  # links listed beside or in place of a matrix
MIN_LINKS = 3  # fewer are rows of the table of exchanges, no matrix
STYLES: dict[Grade, str] = {"slow": "bold red", "wrong": "bold red", "lost": "bold red", "low": "yellow", "ok": ""}
FAILURES = {"timed_out": "hung", "raised": "raised", "died": "died"}
Links = Mapping[tuple[int, int], LinkBandwidth]


def format_lines(communication: Communication, width: int) -> Iterator[Line]:
    """Yield the matrix for a terminal `width` columns wide, the slowest links, and who is slow with all others."""
    bandwidth_map = make_map(communication)
    if not is_drawn(bandwidth_map):
        return
    yield Line()
    yield text_line(describe_map(bandwidth_map))
    matrix = list(_format_matrix(bandwidth_map, width))
    yield from matrix
    yield from (text_line(line) for line in list_slowest(bandwidth_map, 1 if matrix else MAX_SLOWEST))
    for outlier in find_outliers(communication):
        yield Line((), describe_outlier(outlier))


def markdown(communication: Communication) -> Iterator[str]:
    """Yield the matrix as a table, where it is not too wide, and the slowest links."""
    bandwidth_map = make_map(communication)
    if not is_drawn(bandwidth_map):
        return
    yield from ("## Bandwidth", "", escape_line(describe_map(bandwidth_map)), "")
    has_matrix = len(bandwidth_map.members) <= MAX_COLUMNS
    if has_matrix:
        head = (bandwidth_map.unit, *map(str, bandwidth_map.members))
        rows = list(_iter_rows(bandwidth_map))
        yield from format_table(head, ([str(member), *(text for text, _ in cells)] for member, cells in rows))
        yield ""
    yield from (f"- {escape_line(line)}" for line in list_slowest(bandwidth_map, 1 if has_matrix else MAX_SLOWEST))
    yield from (f"- {escape_line(describe_outlier(outlier))}" for outlier in find_outliers(communication))
    yield ""


def is_drawn(bandwidth_map: BandwidthMap) -> bool:
    """Return whether there are enough links for a map."""
    return len(bandwidth_map.links) >= MIN_LINKS


def describe_map(bandwidth_map: BandwidthMap) -> str:
    """Return what the matrix holds, and how much of it was measured."""
    unit, measured = bandwidth_map.unit, len(bandwidth_map.links)
    by_slowest = ", by the slowest pair of ranks of each two" if unit == "node" else ""
    sampled = "all" if measured == bandwidth_map.pairs else f"{measured:,} of"
    return f"bandwidth between {unit}s, GB/s one way{by_slowest}: {sampled} {bandwidth_map.pairs:,} pairs measured"


def list_slowest(bandwidth_map: BandwidthMap, count: int) -> Iterator[str]:
    """Yield the `count` slowest links."""
    measured = [link for link in bandwidth_map.links if link.grade not in ("lost", "wrong")]
    for link in measured[:count]:
        ranks = f" (ranks {link.exchange.ranks[0]}-{link.exchange.ranks[1]})" if bandwidth_map.unit == "node" else ""
        yield f"slowest {bandwidth_map.unit}s {describe_link(link)}{ranks}"


def format_rate(link: LinkBandwidth) -> str:
    """Return a cell of the matrix: three digits, or how the exchange failed."""
    if link.grade in ("lost", "wrong"):
        return FAILURES.get(link.exchange.outcome, "wrong" if link.grade == "wrong" else "-")
    rate = link.exchange.gb_per_s
    return f"{rate:.3g}" if rate < 0.1 or rate >= 1e5 else f"{rate:.{2 if rate < 10 else 1 if rate < 100 else 0}f}"


def index_links(bandwidth_map: BandwidthMap) -> Links:
    """Return each link under both orders of its ends."""
    ends = {(link.first, link.second): link for link in bandwidth_map.links}
    return {**ends, **{(second, first): link for (first, second), link in ends.items()}}


def _iter_rows(bandwidth_map: BandwidthMap) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield each member with its cells: text and style; "·" where nothing was measured."""
    links = index_links(bandwidth_map)
    for row in bandwidth_map.members:
        cells = []
        for column in bandwidth_map.members:
            link = links.get((row, column))
            cells.append((format_rate(link), STYLES[link.grade]) if link else ("-" if row == column else "·", "dim"))
        yield row, cells


def _format_matrix(bandwidth_map: BandwidthMap, width: int) -> Iterator[Line]:
    """Yield the matrix, nothing where it is wider than the terminal."""
    if len(bandwidth_map.members) > MAX_COLUMNS:
        return
    rows = list(_iter_rows(bandwidth_map))
    titles = [str(member) for member in bandwidth_map.members]
    widths = [max(map(len, (title, *(cells[i][0] for _, cells in rows)))) for i, title in enumerate(titles)]
    head_width = max(len(bandwidth_map.unit), *map(len, titles))
    if head_width + sum(widths) + len(widths) > width:
        return
    line = "".join(f" {title:>{widths[i]}}" for i, title in enumerate(titles))
    yield column_line((f"{bandwidth_map.unit:<{head_width}}", "bold"), (line, "bold"))
    for member, cells in rows:
        texts = ((f" {text:>{widths[i]}}", style) for i, (text, style) in enumerate(cells))
        yield column_line((f"{member:>{head_width}}", "bold"), *texts)
