"""Remembers what rules found, so that one that reads the same facts again is not run again: for many launches at once.

A rule is arithmetic over the snapshot: where everything that it read is what it was, it finds what it found. What is
read is noted by field; of the host by its field ("host.glibc"), of the variables by name ("environ.NCCL_ALGO"), as
these differ from machine to machine in what few rules read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from attncheck.core.environment import Host
from attncheck.core.snapshot import Snapshot

T = TypeVar("T")
FIELDS = frozenset(spec.name for spec in fields(Snapshot))
HOST_FIELDS = frozenset(spec.name for spec in fields(Host))
# These are made anew for each launch or node and are small: they are compared by value, all others by identity.
COMPARED_BY_VALUE = frozenset({"environ", "environ_gap", "devices", "model", "host"})
MAX_ANSWERS = 4  # of one rule: as many models or environments in turn
NOT_SET = object()

_parts_read: set[str] = set()


class RecordedHost(Host):
    """A host that notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, noting it where it is a field."""
        if name in HOST_FIELDS:
            _parts_read.add(f"host.{name}")
        return object.__getattribute__(self, name)


class RecordedVariables(Mapping[str, str]):
    """Variables that note which of them are read; where all are, that is noted."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> str:
        _parts_read.add(f"environ.{name}")
        return self._variables[name]

    def __contains__(self, name: object) -> bool:
        _parts_read.add(f"environ.{name}")
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        _parts_read.add("environ")
        return iter(self._variables)

    def __len__(self) -> int:
        _parts_read.add("environ")
        return len(self._variables)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self, **other}


class RecordedSnapshot(Snapshot):
    """A snapshot that notes which of its fields are read; host and variables note their own parts."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, noting it where it is a field."""
        if name in FIELDS and name not in ("host", "environ"):
            _parts_read.add(name)
        return object.__getattribute__(self, name)


def record_snapshot(snapshot: Snapshot) -> RecordedSnapshot:
    """Return a snapshot that notes what is read of it."""
    values = dict(vars(snapshot))
    if type(values["host"]) is Host:
        values["host"] = RecordedHost(**vars(values["host"]))
    if not isinstance(values["environ"], RecordedVariables):
        values["environ"] = RecordedVariables(values["environ"])
    return RecordedSnapshot(**values)


def read_part(values: Mapping[str, Any], part: str) -> Any:
    """Return the value of a part, "torch" or "host.glibc", among the fields of a snapshot."""
    name, _, inner = part.partition(".")
    if not inner:
        return values[name]
    if name == "host":
        return vars(values["host"])[inner]
    return values["environ"].get(inner, NOT_SET)


@dataclass
class RuleMemory(Generic[T]):
    """The answers of rules by code, each with the parts that were read for it and their values."""

    answers: dict[str, list[tuple[tuple[tuple[str, Any], ...], T]]] = field(default_factory=dict)

    def recall(self, code: str, snapshot: Snapshot, run: Callable[[Snapshot], T]) -> T:
        """Return what `run` returns of the snapshot, from memory where it read the same before."""
        values = vars(snapshot)
        kept = self.answers.setdefault(code, [])
        for known, answer in kept:
            for part, value in known:
                now = read_part(values, part)
                if value is not now and (part.partition(".")[0] not in COMPARED_BY_VALUE or value != now):
                    break
            else:
                return answer
        outer = set(_parts_read)
        _parts_read.clear()
        try:
            answer = run(record_snapshot(snapshot))
            kept.insert(0, (tuple((part, read_part(values, part)) for part in _parts_read), answer))
        finally:
            _parts_read.update(outer)
        del kept[MAX_ANSWERS:]
        return answer
