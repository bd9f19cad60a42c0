"""Node numbers as text, in ranges: "0-3, 7"."""

from collections.abc import Iterable

MAX_RANGES = 12  # in a line for people
MAX_NODES = 1 << 17


def format_nodes(numbers: Iterable[int]) -> str:
    """Return node numbers as ranges, in order: "0-3, 7"; "" for none."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_nodes(nodes: str) -> list[int]:
    """Return the numbers that ranges represent: "0-2, 7". Text that is not a range is skipped."""
    numbers: list[int] = []
    for part in nodes.split(", "):
        first, dash, last = part.partition("-")
        if is_number(first) and (is_number(last) if dash else not last):
            numbers += range(int(first), min(int(last or first), MAX_NODES - 1) + 1)
        if len(numbers) > MAX_NODES:
            return numbers[:MAX_NODES]
    return numbers


def is_number(text: str) -> bool:
    """Return whether a text is the number of a node."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def shorten_nodes(nodes: str) -> str:
    """Return the ranges shortened to fit a line: the first dozen, and how many more follow."""
    ranges = nodes.split(", ")
    more = len(ranges) - MAX_RANGES
    return f"{', '.join(ranges[:MAX_RANGES])} and {more} more ranges" if more > 1 else nodes


def name_nodes(nodes: str) -> str:
    """Return ranges with their noun: "node 7", "nodes 0-3, 7"."""
    return f"node{'' if nodes.isdecimal() else 's'} {shorten_nodes(nodes)}"
