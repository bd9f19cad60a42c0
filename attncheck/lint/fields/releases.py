"""The names in a framework's releases: lookups in `names/*.json`, which give each name's range of releases."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attncheck.lint.names import load_table

LATER = "9999"  # later than any release
Row = tuple[str, Any]  # the kind ("bool", "int", "str", "a|b"), and the default if it is a plain value


@cache
def list_releases(framework: str) -> tuple[str, ...]:
    """Return the releases whose names were read, oldest first."""
    return tuple(load_table(framework)["versions"])


parse_version = cache(Version)


def parse_release(text: str) -> Version:
    """Return the release that a version represents; a development version or a candidate represents the next release.

    Raises `InvalidVersion` for a text that is not a version.
    """
    version = Version(text)
    return Version(version.base_version) if version.is_prerelease else version


@cache
def find_release(framework: str, version: str) -> str:
    """Return the newest release read that is not newer than `version`; the newest of all if it is not a version."""
    known = list_releases(framework)
    try:
        requested = parse_release(version)
    except InvalidVersion:
        return known[-1]
    return next((candidate for candidate in reversed(known) if parse_version(candidate) <= requested), known[0])


def list_allowed(allowed: str, releases: Sequence[str]) -> tuple[str, ...] | None:
    """Return the releases in a range such as ">=0.14,<0.16", each representing its minor release; None for no range.

    The newest represents later ones too.
    """
    try:
        specifiers = SpecifierSet(allowed)
    except InvalidSpecifier:
        return None
    if not allowed or not releases:
        return None
    firsts = (f"{parse_version(release).major}.{parse_version(release).minor}.0" for release in releases)
    contained = [pair[0] for pair in zip(releases, firsts) if any(specifiers.filter(pair, prereleases=True))]
    return tuple(contained) or tuple(releases[-1:] if specifiers.contains(LATER) else ())


@cache
def is_at_least(version: str, boundary: str) -> bool:
    """Return whether `version` is at least `boundary`; a text that is not a version counts as the newest."""
    try:
        return parse_release(version) >= Version(boundary)
    except InvalidVersion:
        return True


@cache
def read_fields(framework: str, section: str, version: str) -> Mapping[str, Row]:
    """Return the names that a release has in one section of the table, each with its kind and default."""
    known = list_releases(framework)
    position = known.index(find_release(framework, version))
    rows = {}
    for name, spans in load_table(framework)[section].items():
        for first, last, *row in spans:
            if known.index(first) <= position <= known.index(last):
                rows[name] = (str(row[0]), row[1] if len(row) > 1 else None)
    return rows


def find_lifetime(framework: str, section: str, name: str) -> tuple[str, str] | None:
    """Return the first and the last release read that have a name; None if none has."""
    spans = load_table(framework)[section].get(name)
    return (spans[0][0], spans[-1][1]) if spans else None


def find_change_release(framework: str, section: str, name: str, version: str) -> str:
    """Return the release in which a name was removed or added; "" if no release has it."""
    lifetime = find_lifetime(framework, section, name)
    if lifetime is None:
        return ""
    known = list_releases(framework)
    after = known.index(lifetime[1]) + 1
    return lifetime[0] if not is_at_least(version, lifetime[0]) or after == len(known) else known[after]


@cache
def read_requirements(framework: str, version: str) -> tuple[str, ...]:
    """Return the requirements of a release on packages that attention depends on: "transformers==5.16.1"."""
    return tuple(
        f"{name}{specifier}"
        for name, (specifier, _) in read_fields(framework, "requires", version).items()
        if specifier
    )


def find_closest_name(name: str, names: Iterable[str], cutoff: float = 0.8) -> str:
    """Return the known name whose spelling is closest to `name`; "" if none is close."""
    return _find_closest_name(name, tuple(names), cutoff)


@lru_cache(maxsize=1024)
def _find_closest_name(name: str, names: tuple[str, ...], cutoff: float) -> str:
    return next(iter(get_close_matches(name, names, n=1, cutoff=cutoff)), "")
