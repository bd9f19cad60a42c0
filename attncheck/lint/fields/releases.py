"""Which names a release of a framework knows: lookups in `knowledge/names/*.json` that are written as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from attncheck.lint.names import table

Row = tuple[str, Any]  # the kind ("bool", "int", "str", "a|b"), and the default where it is a plain value


@cache
def versions(framework: str) -> tuple[str, ...]:
    """Return the releases that were read, the oldest first."""
    return tuple(table(framework)["versions"])


@cache
def release(framework: str, version: str) -> str:
    """Return the newest release read that is not newer than `version`; the newest where it is no version."""
    known = versions(framework)
    try:
        asked = Version(version)
    except InvalidVersion:
        return known[-1]
    return next((each for each in reversed(known) if Version(each) <= asked), known[0])


def reaches(version: str, boundary: str) -> bool:
    """Say whether `version` is `boundary` or newer; what is no version is the newest."""
    try:
        return Version(version) >= Version(boundary)
    except InvalidVersion:
        return True


@cache
def fields(framework: str, section: str, version: str) -> Mapping[str, Row]:
    """Return the names that a release has in one section of the table, with kind and default."""
    known = versions(framework)
    at = known.index(release(framework, version))
    found = {}
    for name, spans in table(framework)[section].items():
        for first, last, *row in spans:
            if known.index(first) <= at <= known.index(last):
                found[name] = (str(row[0]), row[1] if len(row) > 1 else None)
    return found


def lifetime(framework: str, section: str, name: str) -> tuple[str, str] | None:
    """Return the first and the last release read that have a name; None where none has."""
    spans = table(framework)[section].get(name)
    return (spans[0][0], spans[-1][1]) if spans else None


def changed(framework: str, section: str, name: str, version: str) -> str:
    """Return the release with which a name went, or from which on it is known; "" where none has it."""
    life = lifetime(framework, section, name)
    if life is None:
        return ""
    known = versions(framework)
    after = known.index(life[1]) + 1
    return life[0] if not reaches(version, life[0]) or after == len(known) else known[after]


def requires(framework: str, version: str) -> tuple[str, ...]:
    """Return what a release requires of the packages that attention depends on: "transformers==5.16.1"."""
    return tuple(f"{name}{kind}" for name, (kind, _) in fields(framework, "requires", version).items() if kind)


def near(name: str, names: Iterable[str]) -> str:
    """Return the known name most like `name`, "" where none is."""
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.8)), "")
