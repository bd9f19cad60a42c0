"""The bandwidth between ranks and nodes in text, Markdown and on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.results.collectives import Communication
from attncheck.report import bandwidth
from attncheck.report.formats import load_format
from attncheck.report.formats.text import format_blocks
from tests.report.html_reader import Page, read_page
from tests.ring.links import make_cluster, make_report


def slow_node() -> Communication:
    """Return the result on four nodes of eight ranks, of which node 2 is slow with all others."""
    return make_cluster(4, 8, lambda a, b: 8.0 if (a // 8 == 2) != (b // 8 == 2) else 1.0)


def render(name: str, communication: Communication) -> str:
    return load_format(name).render(make_report(communication), False)


def read_lines(communication: Communication, width: int) -> list[str]:
    lines = format_blocks(bandwidth.show_bandwidth(communication), False, width)
    return ["".join(text for text, _ in line.head) + line.text for line in lines]


def test_text_shows_the_nodes_and_names_the_slow_one() -> None:
    text = render("text", slow_node())
    assert (
        "Bandwidth between nodes, GB/s one way, the slowest pair of ranks between each two: all 6 pairs measured"
        in text
    )
    assert "\nnode    0    1    2    3\n0       -" in text
    assert "slowest nodes 2-3: " in text or "slowest nodes 0-2: " in text or "slowest nodes 1-2: " in text
    assert "\n  - node 2 is slow with every other node over the network\n" in text
    assert "ATN524 warning node 2 is slow with every other node over the network: " in text
    assert text.count("send_recv") == 0, "pairs that the matrix shows are no rows"


@pytest.mark.parametrize("width", [50, 80, 110, 200])
@pytest.mark.parametrize("size", [(1, 4), (1, 8), (2, 8), (16, 1), (4, 8), (17, 1), (40, 1)])
def test_the_matrix_is_never_wider_than_the_terminal(size: tuple[int, int], width: int) -> None:
    lines = read_lines(make_cluster(*size), width)
    members = size[0] if size[0] > 2 else size[0] * size[1]
    rows = [line for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    assert len(rows) in (0, members) and all(len(line) <= width for line in rows)
    assert (len(rows) == 0) == (members > 16 or 5 + 5 * members > width)
    assert sum(line.startswith("  - slowest") for line in lines) == (1 if rows else 5)


def test_what_was_not_measured_and_what_failed_is_seen() -> None:
    result = make_cluster(2, 8)
    exchanges = [replace(result.exchanges[0], outcome="timed_out", gb_per_s=0.0), *result.exchanges[1:]]
    text = render("text", replace(result, exchanges=tuple(exchanges)))
    assert "hung" in text and "·" in text and "36 of 120 pairs measured" in text
    wrong = replace(result, exchanges=(replace(result.exchanges[0], wrong=3), *result.exchanges[1:]))
    assert " wrong " in render("text", wrong)
    assert "send_recv  0-1 " in render("text", wrong), "what is wrong has its own row too"


def test_two_ranks_have_no_matrix() -> None:
    text = render("text", make_cluster(1, 2))
    assert "Bandwidth between" not in text and "send_recv" in text
    assert "Bandwidth between" not in render("markdown", make_cluster(1, 2))


def test_markdown_has_the_matrix_as_a_table() -> None:
    text = render("markdown", slow_node())
    assert "| node | 0 | 1 | 2 | 3 |" in text
    assert "- node 2 is slow with every other node over the network" in text
    wide = render("markdown", make_cluster(40, 1))
    assert "153 of 780 pairs measured" in wide and wide.count("- slowest nodes") == 5


def read_heat(page: Page) -> list[tuple[str, str]]:
    return [(cell.text, cell.attributes["class"]) for cell in page.with_class("heat")]


def test_the_page_has_a_heat_map_of_nodes_and_one_of_ranks() -> None:
    page = read_page(render("html", slow_node()))
    captions = [caption.text for caption in page.named("caption")]
    assert any(caption.startswith("Bandwidth between nodes") for caption in captions)
    assert any(caption.startswith("Bandwidth between ranks") for caption in captions)
    nodes = read_heat(page)[:16]
    assert [text for text, _ in nodes[::5]] == ["-"] * 4
    slow = [index for index, (_, class_) in enumerate(nodes) if class_ == "heat bad"]
    assert slow == [2, 6, 8, 9, 11, 14], "row 2 and column 2, and nothing else"
    assert all(float(nodes[index][0]) < 12 for index in slow)
    assert "node 2 is slow with every other node over the network" in [line.text for line in page.named("li")]


def test_the_page_lists_the_slowest_of_many() -> None:
    page = read_page(render("html", make_cluster(100, 8)))
    assert not page.with_class("heat")
    assert any("of 4,950 pairs measured; the slowest" in caption.text for caption in page.named("caption"))
    assert len(render("html", make_cluster(512, 8))) < 400_000
