"""Remembers the findings of rules, so that a rule that would read the same facts again is not run again.

A rule depends only on the snapshot: if everything it read is unchanged, so are its findings. Reads are recorded by
field, and for the host by its field ("host.glibc"). Variables are recorded by name ("environ.NCCL_ALGO"), because they
differ between machines and few rules read each of them. Small queries are recorded by their answer (`noted_by_answer`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from packaging.version import Version

from attncheck.core.facts import Fact, Known
from attncheck.core.snapshot import Host, Snapshot

T = TypeVar("T")
Part = str | tuple[Callable[[Snapshot, str], Any], str]  # a field, a part of a field, or a query and its subject
FIELDS = frozenset(spec.name for spec in fields(Snapshot))
HOST_FIELDS = frozenset(spec.name for spec in fields(Host))
# These are small and are created again for each launch or node, so they are compared by value; all others by identity.
COMPARED_BY_VALUE = frozenset({"environ", "environ_gap", "devices", "model", "host"})
MAX_ANSWERS = 4  # per rule: enough for several models or environments in turn
NOT_SET = object()

_parts_read: set[Part] = set()
_ranges_read: dict[str, str] = {}


class RecordedHost(Host):
    """A host that records which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and record it if it is a field."""
        if name in HOST_FIELDS:
            _parts_read.add(f"host.{name}")
        return object.__getattribute__(self, name)


class RecordedVariables(Mapping[str, str]):
    """Environment variables that record which of them are read; reading all of them is recorded as such."""

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
    """A snapshot that records which of its fields are read; host and variables record their own parts."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and record it if it is a field."""
        if name in FIELDS and name not in ("host", "environ"):
            _parts_read.add(name)
        if name == "torch":
            _note_range(self, name)
        return object.__getattribute__(self, name)

    def version(self, name: str) -> Fact[Version]:
        """Return the version of a distribution, and record it if a target only gives a range of versions."""
        _note_range(self, name)
        return super().version(name)


def _note_range(snapshot: Snapshot, name: str) -> None:
    package = snapshot.package(name)
    if isinstance(package, Known) and package.value.allowed and not package.value.version:
        _ranges_read[package.value.name] = package.value.allowed


def note_ranges(question: Callable[[], T]) -> tuple[T, dict[str, str]]:
    """Return the answer of a question about a recorded snapshot, and the ranges of versions that were read for it."""
    _ranges_read.clear()
    return question(), dict(_ranges_read)


def record_snapshot(snapshot: Snapshot) -> RecordedSnapshot:
    """Return a snapshot that records which of its parts are read."""
    values = dict(vars(snapshot))
    if type(values["host"]) is Host:
        values["host"] = RecordedHost(**vars(values["host"]))
    if not isinstance(values["environ"], RecordedVariables):
        values["environ"] = RecordedVariables(values["environ"])
    return RecordedSnapshot(**values)


def noted_by_answer(question: Callable[[Snapshot, str], T]) -> Callable[[Snapshot, str], T]:
    """Record the answer of a query instead of the parts it reads, so that launches that differ elsewhere share it."""

    @functools.wraps(question)
    def recorded(snapshot: Snapshot, subject: str) -> T:
        outer = set(_parts_read)
        answer = question(snapshot, subject)
        if isinstance(snapshot, RecordedSnapshot):
            _parts_read.clear()
            _parts_read.update(outer, [(question, subject)])
        return answer

    return recorded


def without_recording(make: Callable[[], T]) -> T:
    """Return `make()` without recording what it reads."""
    outer = set(_parts_read)
    try:
        return make()
    finally:
        _parts_read.clear()
        _parts_read.update(outer)


def read_part(snapshot: Snapshot, part: Part) -> Any:
    """Return the value of a part of a snapshot, "torch" or "host.glibc", or the answer of a query about it."""
    if not isinstance(part, str):
        question, subject = part
        return question(snapshot, subject)
    values = vars(snapshot)
    name, _, inner = part.partition(".")
    if not inner:
        return values[name]
    if name == "host":
        return vars(values["host"])[inner]
    return values["environ"].get(inner, NOT_SET)


@dataclass
class RuleMemory(Generic[T]):
    """The answers of rules by code, each with the parts that were read for it and their values.

    Each part of a snapshot is read and compared once, not once per rule: equal values become one object.
    """

    answers: dict[str, list[tuple[tuple[tuple[Part, Any], ...], T]]] = field(default_factory=dict)
    values: dict[Part, list[Any]] = field(default_factory=dict)  # the latest different ones of earlier snapshots
    snapshot: Snapshot | None = None  # the one that the next two fields describe
    recorded: Snapshot | None = None
    current: dict[Part, Any] = field(default_factory=dict)

    def recall(self, code: str, snapshot: Snapshot, run: Callable[[Snapshot], T]) -> T:
        """Return `run(snapshot)`; the remembered result if every part that it read has the same value as before."""
        if snapshot is not self.snapshot:
            self.snapshot, self.recorded, self.current = snapshot, record_snapshot(snapshot), {}
        assert self.recorded is not None
        current = self.current
        kept = self.answers.setdefault(code, [])
        for known, answer in kept:
            for part, value in known:
                if value is not (current[part] if part in current else self._read(part, snapshot)):
                    break
            else:
                return answer
        outer = set(_parts_read)
        _parts_read.clear()
        try:
            answer = run(self.recorded)
            kept.insert(0, (tuple((part, self._read(part, snapshot)) for part in _parts_read), answer))
        finally:
            _parts_read.update(outer)
        del kept[MAX_ANSWERS:]
        return answer

    def _read(self, part: Part, snapshot: Snapshot) -> Any:
        """Return the value of a part of the current snapshot; an equal earlier value if it is compared by value."""
        if part not in self.current:
            value = read_part(snapshot, part)
            if _is_compared_by_value(part):
                earlier = self.values.setdefault(part, [])
                value = next((known for known in earlier if known is value or known == value), value)
                earlier[:] = [value, *(known for known in earlier if known is not value)][: 2 * MAX_ANSWERS]
            self.current[part] = value
        return self.current[part]


def _is_compared_by_value(part: Part) -> bool:
    return not isinstance(part, str) or part.partition(".")[0] in COMPARED_BY_VALUE
