"""Remembers the findings of rules, so that a rule that would read the same facts again is not run again.

A rule depends only on the snapshot: if everything it read is unchanged, so are its findings. Reads are recorded by
field, and for the host and the job by theirs ("host.glibc", "job.plan"). Variables are recorded by name
("environ.NCCL_ALGO"), because they differ between machines and few rules read each of them. Small queries are recorded
by their answer (`noted_by_answer`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Generic, TypeVar

from packaging.version import Version

from attncheck.core.job import Job
from attncheck.core.records import list_fields
from attncheck.core.snapshot import Fact, Host, Known, Snapshot

T = TypeVar("T")
Part = str | tuple[Callable[[Snapshot, str], Any], str]  # a field, a part of a field, or a query and its subject
# What is recorded if an attribute is read; "job.framework": whether there is a job. Host and variables record theirs.
PARTS = {
    **{spec.name: spec.name for spec in fields(Snapshot) if spec.name not in ("host", "environ")},
    "job": "job.framework",
    "_distributions_by_name": "distributions",
}
# These are small and are created again for each launch or node, so they are compared by value; all others by identity.
COMPARED_BY_VALUE = frozenset({"environ", "environ_gap", "devices", "model", "host", "job"})
# Equal locations may end elsewhere, and these contain some.
COMPARED_BY_IDENTITY = frozenset(
    f"job.{name}" for name in ("location", "locations", "settings", "unknown_settings", "problems", "variables")
)
MAX_ANSWERS = 256  # of a rule that reads the same parts: enough for many launches, models or environments in turn
NOT_SET = object()

_parts_read: set[Part] = set()
_ranges_read: dict[str, str] = {}


def _make_recorded(kind: type[Any], name: str) -> type[Any]:
    """Return the subclass of a class whose objects record which of their fields are read, as parts of `name`."""
    parts = {spec.name: f"{name}.{spec.name}" for spec in fields(kind)}

    def read_attribute(self: Any, attribute: str) -> Any:
        if attribute in parts:
            _parts_read.add(parts[attribute])
        return object.__getattribute__(self, attribute)

    return type(f"Recorded{kind.__name__}", (kind,), {"__getattribute__": read_attribute})


RecordedHost, RecordedJob = _make_recorded(Host, "host"), _make_recorded(Job, "job")


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
        part = PARTS.get(name)
        if part is not None:
            _parts_read.add(part)
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
    values = {name: vars(snapshot)[name] for name in list_fields(Snapshot)}
    if type(values["host"]) is Host:
        values["host"] = RecordedHost(**vars(values["host"]))
    if isinstance(values["job"], Known) and type(values["job"].value) is Job:
        values["job"] = Known(RecordedJob(**vars(values["job"].value)))
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
    name, inner, _ = _split_part(part)
    if not inner:
        return values[name]
    if name in ("host", "job"):
        whole = values[name].value if isinstance(values[name], Known) else values[name]
        return vars(whole).get(inner, whole)  # without a job, why there is none
    return values["environ"].get(inner, NOT_SET)


@dataclass
class RuleMemory(Generic[T]):
    """The answers of rules by code and by the parts that were read for them, each with the values of these parts.

    Each part of a snapshot is read and compared once, not once per rule: equal values become one object.
    """

    answers: dict[str, dict[frozenset[Part], dict[int, tuple[T, list[Any]]]]] = field(default_factory=dict)
    values: dict[tuple[Part, Any], Any] = field(default_factory=dict)  # those that are compared by value
    current: "CurrentParts | None" = None
    sets: dict[frozenset[Part], frozenset[Part]] = field(default_factory=dict)  # of parts, each as one object
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)  # of the identities of a set, for all rules

    def recall(self, code: str, snapshot: Snapshot, run: Callable[[Snapshot], T]) -> T:
        """Return `run(snapshot)`; the remembered result if every part that it read has the same value as before."""
        current = self.current
        if current is None or snapshot is not current.snapshot:
            self.current = current = CurrentParts(snapshot, self.values, self.numbers)
        kept = self.answers.setdefault(code, {})
        for parts, answers in kept.items():
            number = current.identified.get(parts)
            known = answers.get(current.identify(parts) if number is None else number)
            if known is not None:
                return known[0]
        outer = set(_parts_read)
        _parts_read.clear()
        try:
            answer = run(current.recorded)
            read = self.sets.setdefault(frozenset(_parts_read), frozenset(_parts_read))
        finally:
            _parts_read.update(outer)
        number = current.identify(read)
        answers = kept.setdefault(read, {})
        if len(answers) >= MAX_ANSWERS:
            answers.clear()
        answers[number] = answer, [current.held[part] for part in read]  # which keeps their identities
        return answer

    def list_values(self, code: str) -> Iterator[tuple[Part, Any]]:
        """Yield the parts that were read for the rule `code`, each with a value that it had."""
        for parts, answers in self.answers.get(code, {}).items():
            yield from (pair for _, values in answers.values() for pair in zip(parts, values))


class CurrentParts(dict[Part, int]):
    """The identities of the parts of a snapshot, each read at its first use; an equal earlier value is taken instead.

    `id` is called once a part, because it is an event for the hook of `attncheck.cli.answers`.
    """

    def __init__(
        self, snapshot: Snapshot, known: dict[tuple[Part, Any], Any], numbers: dict[tuple[int, ...], int]
    ) -> None:
        self.snapshot, self.known, self.numbers = snapshot, known, numbers
        self.held: dict[Part, Any] = {}
        self.identified: dict[frozenset[Part], int] = {}

    @cached_property
    def recorded(self) -> Snapshot:
        """Return the snapshot, recording which of its parts are read."""
        return record_snapshot(self.snapshot)

    def identify(self, parts: frozenset[Part]) -> int:
        """Return the number of the identities of a set of parts."""
        identities = tuple(map(self.__getitem__, parts))
        return self.identified.setdefault(parts, self.numbers.setdefault(identities, len(self.numbers)))

    def __missing__(self, part: Part) -> int:
        value = read_part(self.snapshot, part)
        if value is not NOT_SET and _split_part(part)[2]:
            try:
                value = self.known.setdefault((part, value), value)
            except TypeError:  # it holds a dictionary
                value = self.known.setdefault((part, repr(value)), value)
        self.held[part] = value
        self[part] = id(value)
        return self[part]


@functools.cache
def _split_part(part: Part) -> tuple[str, str, bool]:
    """Return the field and its part ("" for the whole field), and whether it is compared by value, as a query is."""
    if not isinstance(part, str):
        return "", "", True
    name, _, inner = part.partition(".")
    return name, inner, name in COMPARED_BY_VALUE and part not in COMPARED_BY_IDENTITY
