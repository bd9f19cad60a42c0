"""The bandwidth between ranks and between nodes on the page: heat maps whose cells hold the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.results.collectives import Communication
from attncheck.report.bandwidth_table import (
    describe_map,
    format_rate,
    index_links,
    is_drawn,
    list_slowest,
)
from attncheck.report.html_page.elements import Markup, element, fold, paragraphs
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.ring.bandwidth_map import (
    BandwidthMap,
    Grade,
    LinkBandwidth,
    describe_link,
    describe_outlier,
    find_outliers,
    make_map,
)

MAX_MEMBERS = 32  # of a matrix; of more, the slowest links are listed
MAX_LINKS = 40
CLASSES: dict[Grade, str] = {"ok": "pass-1", "low": "warn", "slow": "bad", "wrong": "bad", "lost": "bad"}
LEGEND = (
    "green: like other links of its kind; yellow: below two thirds of their median; red and underlined: at most a third"
    " of it, or far below the link's documented rate, or not right"
)


def show_bandwidth(communication: Communication) -> Iterator[Markup]:
    """Yield who is slow with all others, then a map of nodes where there are several, and one of ranks."""
    outliers = [describe_outlier(outlier) for outlier in find_outliers(communication)]
    if outliers:
        yield paragraphs((f"{line[:1].upper()}{line[1:]}." for line in outliers), "message")
    maps = [make_map(communication, "rank")]
    if len({facts.node for facts in communication.ranks}) > 1:
        maps.insert(0, make_map(communication, "node"))
    drawn = [bandwidth_map for bandwidth_map in maps if is_drawn(bandwidth_map)]
    for number, bandwidth_map in enumerate(drawn):
        blocks = _show_map(bandwidth_map)
        yield from [fold(describe_map(bandwidth_map), *blocks)] if number else blocks
    if drawn:
        yield element("p", LEGEND, class_="dim")


def _show_map(bandwidth_map: BandwidthMap) -> Iterator[Markup]:
    title = describe_map(bandwidth_map)
    title = title[:1].upper() + title[1:]
    if len(bandwidth_map.members) <= MAX_MEMBERS:
        yield _make_matrix(bandwidth_map, title)
        yield paragraphs(list_slowest(bandwidth_map, 1))
        return
    rows = [(_name_ends(bandwidth_map, link), describe_link(link)) for link in bandwidth_map.links]
    yield text_table(f"{title}; the slowest", (f"{bandwidth_map.unit}s", "bandwidth"), rows, MAX_LINKS)


def _name_ends(bandwidth_map: BandwidthMap, link: LinkBandwidth) -> str:
    ranks = f" (ranks {link.exchange.ranks[0]}-{link.exchange.ranks[1]})" if bandwidth_map.unit == "node" else ""
    return f"{link.first}-{link.second}{ranks}"


def _make_matrix(bandwidth_map: BandwidthMap, title: str) -> Markup:
    links, members = index_links(bandwidth_map), bandwidth_map.members

    def write_cell(row: int, column: int) -> Markup:
        link = links.get((row, column))
        if link is None:
            return cell("–" if row == column else "·", "heat none")
        return cell(format_rate(link), f"heat {CLASSES[link.grade]}")

    rows = ([row_head(str(row)), *(write_cell(row, column) for column in members)] for row in members)
    head = (bandwidth_map.unit, *map(str, members))
    return make_table(title, head, rows, numbers=head[1:], class_="matrix")
