"""Lists made from pairs: the texts that apply, and the values of each key."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def list_applying(conditions: Mapping[str, object]) -> list[str]:
    """Return the texts whose condition holds, in order."""
    return [text for text, holds in conditions.items() if holds]


def group_values(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
