"""Shows the bandwidth between every two ranks or nodes: a matrix, the slowest links, and consistently slow members."""

from collections.abc import Iterator

from attncheck.core.results.collectives import CollectiveResult, Communication
from attncheck.report.blocks import Block, Bullets, Fold, Paragraph, Table, text_table
from attncheck.report.columns import Column, Row
from attncheck.ring.bandwidth_map import (
    BandwidthMap,
    Grade,
    LinkBandwidth,
    describe_link,
    describe_outlier,
    find_outliers,
    make_map,
)

MAX_SLOWEST = 5  # links listed if the matrix is too wide
MAX_LINKS = 40  # links listed as a detail
MIN_LINKS = 3  # fewer links are rows of the table of exchanges, without a matrix
STYLES: dict[Grade, str] = {"slow": "bold red", "wrong": "bold red", "lost": "bold red", "low": "yellow", "ok": ""}
FAILURES = {"timed_out": "hung", "raised": "raised", "died": "died"}
LEGEND = "yellow: below two thirds of the median of its kind; red: at most a third, far below its rated speed, or wrong"


def show_bandwidth(communication: Communication) -> Iterator[Block]:
    """Yield the members that are slow with all others, a map of nodes or, with one node, of ranks, and its legend."""
    main = make_map(communication)
    if not is_drawn(main):
        return
    yield Bullets(tuple(map(describe_outlier, find_outliers(communication))))
    yield from _show_map(main)
    by_rank = make_map(communication, "rank")
    if main.unit == "node" and is_drawn(by_rank):
        yield Fold(_title(by_rank), tuple(_show_map(by_rank)))
    yield Fold("How to read it", (Paragraph(LEGEND),))


def is_drawn(bandwidth_map: BandwidthMap) -> bool:
    """Return whether there are enough links for a map."""
    return len(bandwidth_map.links) >= MIN_LINKS


def list_unmapped(communication: Communication) -> list[CollectiveResult]:
    """Return the exchanges of the whole group, and those of pairs that failed or that the matrix does not show."""
    if not is_drawn(make_map(communication)):
        return list(communication.exchanges)
    return [e for e in communication.exchanges if e.operation != "send_recv" or e.outcome != "ok" or e.wrong]


def _show_map(bandwidth_map: BandwidthMap) -> Iterator[Block]:
    """Yield the matrix with its slowest link; if it is too wide, the slowest links."""
    links = [link for link in bandwidth_map.links if link.grade not in ("lost", "wrong")]
    slowest = [_describe_slow(bandwidth_map, link) for link in links[:MAX_SLOWEST]]
    rows = ((_name_ends(bandwidth_map, link), describe_link(link)) for link in bandwidth_map.links[:MAX_LINKS])
    title = f"{_title(bandwidth_map)}; the slowest"
    listed = text_table(title, (f"{bandwidth_map.unit}s", "bandwidth"), rows)
    yield Table(
        _title(bandwidth_map),
        bandwidth_map.unit,
        tuple(Column(str(member)) for member in bandwidth_map.members),
        tuple(_iter_rows(bandwidth_map)),
        heat=True,
        matrix=True,
        otherwise=(Bullets(tuple(slowest[1:])), Fold(title, (listed,))),
    )
    yield Bullets(tuple(slowest[:1]))


def _title(bandwidth_map: BandwidthMap) -> str:
    """Return what the matrix shows, and how much of it was measured."""
    unit, measured = bandwidth_map.unit, len(bandwidth_map.links)
    by_slowest = ", the slowest pair of ranks between each two" if unit == "node" else ""
    sampled = "all" if measured == bandwidth_map.pairs else f"{measured:,} of"
    return f"Bandwidth between {unit}s, GB/s one way{by_slowest}: {sampled} {bandwidth_map.pairs:,} pairs measured"


def _describe_slow(bandwidth_map: BandwidthMap, link: LinkBandwidth) -> str:
    first, second = link.exchange.ranks[0], link.exchange.ranks[1]
    ranks = f" (ranks {first}-{second})" if bandwidth_map.unit == "node" else ""
    return f"slowest {bandwidth_map.unit}s {describe_link(link)}{ranks}"


def _name_ends(bandwidth_map: BandwidthMap, link: LinkBandwidth) -> str:
    first, second = link.exchange.ranks[0], link.exchange.ranks[1]
    return f"{link.first}-{link.second}" + (f" (ranks {first}-{second})" if bandwidth_map.unit == "node" else "")


def format_rate(link: LinkBandwidth) -> str:
    """Return a cell of the matrix: three digits, or how the exchange failed."""
    if link.grade in ("lost", "wrong"):
        return FAILURES.get(link.exchange.outcome, "wrong" if link.grade == "wrong" else "-")
    rate = link.exchange.gb_per_s
    return f"{rate:.3g}" if rate < 0.1 or rate >= 1e5 else f"{rate:.{2 if rate < 10 else 1 if rate < 100 else 0}f}"


def _iter_rows(bandwidth_map: BandwidthMap) -> Iterator[Row]:
    """Yield each member with its cells: text and style; "·" if nothing was measured."""
    ends = {(link.first, link.second): link for link in bandwidth_map.links}
    links = {**ends, **{(second, first): link for (first, second), link in ends.items()}}
    for row in bandwidth_map.members:
        cells = []
        for column in bandwidth_map.members:
            link = links.get((row, column))
            cells.append((format_rate(link), STYLES[link.grade]) if link else ("-" if row == column else "·", "dim"))
        yield Row(str(row), tuple(cells))
