"""Tries the releases that a target's range of versions allows, because any of them may run.

A rule that finds its fault in every one of them finds it in the range. A rule that finds it in some is inconclusive.
"""

from collections.abc import Iterator
from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attncheck.doctor.knowledge import transformers

EARLIER, LATER = "0.0.1", "9999"  # before and after any release
MINORS, PATCHES = 40, 5  # of a package whose releases are not listed

TORCH = [
    Version(f"{major}.{minor}.{patch}")
    for major, minors in ((1, range(8, 14)), (2, range(16)))
    for minor in minors
    for patch in range(3)
]


@cache
def list_versions(name: str, allowed: str) -> tuple[str, ...]:
    """Return versions of a distribution from everywhere in a range; those that the range names come first.

    A text that is no range allows every version.
    """
    try:
        specifiers = SpecifierSet(allowed)
    except InvalidSpecifier:
        specifiers = SpecifierSet()
    bounds = sorted(_iter_bounds(specifiers), reverse=True)
    known = transformers.known_releases(SpecifierSet()) if name == "transformers" else list(_iter_grid(bounds))
    known = TORCH if name == "torch" else known
    candidates = [*bounds, *reversed(known), Version(EARLIER), Version(LATER)]
    versions = [str(version) for version in specifiers.filter(candidates, prereleases=True)]
    spread = versions[:: max(1, len(versions) // 8)]  # first, because two that differ end the search
    return tuple(dict.fromkeys((*versions[:1], *versions[-1:], *spread, *versions)))


def _iter_bounds(specifiers: SpecifierSet) -> Iterator[Version]:
    for clause in specifiers:
        try:
            yield Version(clause.version.removesuffix(".*"))
        except InvalidVersion:
            continue  # "===" takes any text


def _iter_grid(bounds: list[Version]) -> Iterator[Version]:
    """Yield versions of every major release near the bounds, oldest first."""
    majors = [bound.major for bound in bounds] or [0]
    for major in range(max(0, min(majors) - 1), min(max(majors), min(majors) + 2) + 2):
        for number in range(MINORS * PATCHES):
            yield Version(f"{major}.{number // PATCHES}.{number % PATCHES}")
