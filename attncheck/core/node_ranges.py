"""Numbers of nodes as text, in ranges: "0-3, 7"."""

from __future__ import annotations

from collections.abc import Iterable

MAX_RANGES = 12  # of a line for people


def format_nodes(numbers: Iterable[int]) -> str:
    """Return numbers of nodes in ranges, in order: "0-3, 7"; "" for none."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_nodes(nodes: str) -> list[int]:
    """Return the numbers that ranges stand for: "0-2, 7"."""
    numbers: list[int] = []
    for part in filter(None, nodes.split(", ")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def shorten_nodes(nodes: str) -> str:
    """Return ranges as a line has room for them: the first dozen, and how many ranges follow."""
    ranges = nodes.split(", ")
    more = len(ranges) - MAX_RANGES
    return f"{', '.join(ranges[:MAX_RANGES])} and {more} more ranges" if more > 1 else nodes


def name_nodes(nodes: str) -> str:
    """Return ranges with their noun: "node 7", "nodes 0-3, 7"."""
    return f"node{'' if nodes.isdecimal() else 's'} {shorten_nodes(nodes)}"
