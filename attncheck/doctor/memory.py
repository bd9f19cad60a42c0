"""Remembers what rules found, so that one that reads the same facts again is not run again: for many launches at once.

A rule is arithmetic over the snapshot: where every field that it read is what it was, it finds what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from attncheck.core.snapshot import Snapshot

T = TypeVar("T")
FIELDS = frozenset(spec.name for spec in fields(Snapshot))
# These are made anew for each launch and are small: they are compared by value, all others by identity.
COMPARED_BY_VALUE = frozenset({"environ", "environ_gap", "devices", "model"})
MAX_ANSWERS = 4  # of one rule: as many models or environments in turn

_fields_read: set[str] = set()


class RecordedSnapshot(Snapshot):
    """A snapshot that notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, noting it where it is a field."""
        if name in FIELDS:
            _fields_read.add(name)
        return object.__getattribute__(self, name)


@dataclass
class RuleMemory(Generic[T]):
    """The answers of rules by code, each with the fields that were read for it."""

    answers: dict[str, list[tuple[tuple[tuple[str, Any], ...], T]]] = field(default_factory=dict)

    def recall(self, code: str, snapshot: Snapshot, run: Callable[[Snapshot], T]) -> T:
        """Return what `run` returns of the snapshot, from memory where it read the same before."""
        values = vars(snapshot)
        kept = self.answers.setdefault(code, [])
        for known, answer in kept:
            for name, value in known:
                if value is not values[name] and (name not in COMPARED_BY_VALUE or value != values[name]):
                    break
            else:
                return answer
        outer = set(_fields_read)
        _fields_read.clear()
        try:
            answer = run(RecordedSnapshot(**values))
            kept.insert(0, (tuple((name, values[name]) for name in _fields_read), answer))
        finally:
            _fields_read.update(outer)
        del kept[MAX_ANSWERS:]
        return answer
