"""Checks that an objection is raised in the releases that make it and in no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def check_range(fires: Callable[[str], bool], releases: Sequence[str], since: str = "", until: str = "") -> None:
    """Check at the borders of a range that an objection is raised from `since` on and before `until`.

    "" is the oldest release and beyond the newest one.
    """
    first = releases.index(since) if since else 0
    after = releases.index(until) if until else len(releases)
    borders = {0, first - 1, first, after - 1, after, len(releases) - 1} & set(range(len(releases)))
    assert {releases[index]: fires(releases[index]) for index in sorted(borders)} == {
        releases[index]: first <= index < after for index in sorted(borders)
    }
