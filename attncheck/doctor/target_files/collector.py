"""Collects the packages that files name, for every interpreter that the environment may have."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_bounded
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.queries.requirements import canonical_name

MAX_BYTES = 1 << 20  # for a file that people write
MAX_LOCK_BYTES = 16 << 20  # the lock file of a large workspace can have several megabytes
MAX_LENGTH = 200  # for a name, a version, and text that a remark quotes
MAX_REMARKS = 40
MAX_FILES = 64  # files that include one another
NO_VERSION = "it is not pinned"
# Markers are evaluated for Linux, where GPUs train, and for each of these versions, because the version is unknown.
PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class PackageList:
    """The packages that files name; a package that is not listed is neither present nor missing."""

    versions: dict[str, str] = field(default_factory=dict)  # distribution -> its only possible version
    allowed: dict[str, str] = field(default_factory=dict)  # distribution -> its allowed versions: ">=4.51,<5"
    remarks: tuple[str, ...] = ()


class Entry(NamedTuple):
    """One requirement: the versions that it allows, and the interpreters that it applies to."""

    specifier: str  # "" for any; a notation other than PEP 440 names no single version
    interpreters: frozenset[int]
    installs: bool = True  # a constraint installs nothing


class Collector:
    """The requirements read so far, one for each line that states it."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.remarks: dict[str, None] = {}
        self.python = SpecifierSet()
        self._files = 0

    def read_text(self, path: str, limit: int = MAX_BYTES) -> str:
        """Return a file's text. Raises `BadUsage` for a file that cannot be read, and for too many files."""
        self._files += 1
        if self._files > MAX_FILES:
            raise BadUsage(f"{path}: more than {MAX_FILES} files include one another")
        data = read_bounded(path, limit)
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise BadUsage(f"cannot read {path}: it is not UTF-8 text") from None

    def remark(self, path: str, line: int, text: str) -> None:
        """Record a remark about something that was not understood; `line` 0 means the whole file."""
        if len(self.remarks) < MAX_REMARKS:
            self.remarks[f"{os.path.basename(path)}{f':{line}' if line else ''}: {shorten(text)}"] = None

    def add(self, name: str, specifier: str = "", marker: Marker | str | None = None, installs: bool = True) -> None:
        """Add a requirement of the distribution `name`; `marker` is in PEP 508 notation."""
        interpreters = matching_interpreters(str(marker)) if marker is not None else ALL_INTERPRETERS
        self.add_for(name, specifier, interpreters, installs)

    def add_for(self, name: str, specifier: str, interpreters: frozenset[int], installs: bool = True) -> None:
        """Add a requirement that applies only to these interpreters."""
        if max(len(name), len(specifier)) > MAX_LENGTH:
            self.remarks[f"a name or version of more than {MAX_LENGTH} characters was not read: {shorten(name)}"] = None
        elif interpreters:
            entry = Entry(specifier.strip(), interpreters, installs)
            self.entries.setdefault(canonical_name(name), []).append(entry)

    def limit_python(self, specifier: str) -> None:
        """Keep only interpreters that a file allows; an invalid specifier changes nothing."""
        with suppress(InvalidSpecifier):
            self.python &= SpecifierSet(specifier if len(specifier) <= MAX_LENGTH else "")

    def package_list(self) -> PackageList:
        """Return the packages that are the same in every interpreter that the files allow."""
        possible = frozenset(
            index
            for index in ALL_INTERPRETERS
            if any(self.python.contains(f"{INTERPRETERS[index]['python_version']}.{patch}") for patch in (0, 30))
        )
        if not possible:
            self.remarks[f"none of the allowed Pythons is known: {self.python}"] = None
            possible = ALL_INTERPRETERS
        versions: dict[str, str] = {}
        allowed: dict[str, str] = {}
        for name, entries in self.entries.items():
            installed = frozenset[int]().union(*(entry.interpreters for entry in entries if entry.installs))
            if not possible <= installed:
                if possible & installed and name in RELEVANT_DISTRIBUTIONS:
                    self.remarks[
                        f"{name} is required only for some interpreters, so it is treated as not installed"
                    ] = None
                continue
            resolved = {self._resolve(name, texts) for texts in {_list_specifiers(entries, i) for i in possible}}
            if len(resolved) == 1 and (version := next(iter(resolved))):
                versions[name] = version
            else:
                allowed[name] = _find_allowed(entries, possible)
        return PackageList(versions, allowed, tuple(self.remarks))

    def _resolve(self, name: str, texts: Sequence[str]) -> str:
        """Return the version that an interpreter with these specifiers gets; "" if it is not a single one."""
        try:
            specifiers = [SpecifierSet(text) for text in texts]
        except InvalidSpecifier:
            return ""
        pins = {Version(text) for specifier in specifiers if (text := find_pin(specifier))}
        if not pins:
            return ""
        pin = max(pins, key=lambda version: len(str(version)))  # 2.6.0+cu124 satisfies ==2.6.0, but not the reverse
        if all(specifier.contains(pin, prereleases=True) for specifier in specifiers):
            return str(pin)
        self.remarks[f"{name} is required in versions that exclude each other: {', '.join(sorted(texts))}"] = None
        return ""


def shorten(text: str) -> str:
    """Return a text shortened to fit a line of a report."""
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "…"


def find_pin(specifier: SpecifierSet) -> str:
    """Return the only version that a specifier allows; "" if it allows several."""
    for clause in specifier:
        if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
            try:
                return str(Version(clause.version))
            except InvalidVersion:
                return ""
    return ""


def _list_specifiers(entries: Sequence[Entry], index: int) -> tuple[str, ...]:
    """Return the specifiers that apply to an interpreter."""
    return tuple(dict.fromkeys(item.specifier for item in entries if index in item.interpreters and item.specifier))


def _find_allowed(entries: Sequence[Entry], possible: frozenset[int]) -> str:
    """Return the versions that some interpreter may get; only clauses that hold in each of them are kept."""
    different = tuple(dict.fromkeys(_list_specifiers(entries, index) for index in sorted(possible)))
    if len(different) == 1:
        return ", ".join(different[0]) or NO_VERSION
    try:
        specifiers = [SpecifierSet(",".join(parts)) for parts in different]
    except InvalidSpecifier:
        return NO_VERSION
    clauses = dict.fromkeys(clause for specifier in specifiers for clause in specifier)
    common = (str(clause) for clause in clauses if all(_implies(specifier, clause) for specifier in specifiers))
    return ",".join(sorted(common)) or NO_VERSION


def _implies(specifier: SpecifierSet, clause: Specifier) -> bool:
    """Return whether a specifier has a clause, or a tighter bound of its kind."""
    kind = clause.operator[:1]
    return clause in specifier or any(
        kind in ("<", ">") and kind == other.operator[:1] and Version(other.version) in SpecifierSet(str(clause))
        for other in specifier
    )


def _make_interpreter(python: str, machine: str) -> Mapping[str, Any]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.9",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
        "os_name": "posix",
        "extra": "",
        "extras": frozenset(),
        "dependency_groups": frozenset(),
    }


INTERPRETERS = tuple(_make_interpreter(python, machine) for python, machine in product(PYTHONS, MACHINES))
ALL_INTERPRETERS = frozenset(range(len(INTERPRETERS)))


@lru_cache(maxsize=4096)
def matching_interpreters(marker: str) -> frozenset[int]:
    """Return the interpreters for which a marker is true; none if it cannot be evaluated."""
    try:
        parsed = Marker(marker)
        return frozenset(index for index in ALL_INTERPRETERS if parsed.evaluate(dict(INTERPRETERS[index])))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # packaging before 25.0 knows fewer names
        return frozenset()


def as_table(value: object) -> dict[str, Any]:
    """Return the value if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return the value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""
