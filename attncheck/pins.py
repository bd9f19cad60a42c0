"""What the installed distributions ask of one another: their Requires-Dist, read for the examined interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.snapshot import Distribution, Snapshot

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normalised(name: str) -> str:
    """Return `name` as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def marker_environment(snapshot: Snapshot) -> dict[str, str]:
    """Return the values that markers are evaluated with: the examined interpreter's, no extra asked for."""
    host = snapshot.host
    system = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}.get(host.platform, host.platform)
    return {
        "python_version": ".".join(host.python_version.split(".")[:2]),
        "python_full_version": host.python_version,
        "implementation_name": host.python_implementation,
        "platform_python_implementation": {"cpython": "CPython", "pypy": "PyPy"}.get(host.python_implementation, ""),
        "sys_platform": host.platform,
        "platform_system": system,
        "platform_machine": host.machine,
        "os_name": "nt" if host.platform == "win32" else "posix",
        "extra": "",
    }


def demands_of(snapshot: Snapshot, distribution: Distribution, *names: str) -> Iterator[Requirement]:
    """Yield what `distribution` requires here without extras; of the projects `names` alone, if any are given."""
    environment = marker_environment(snapshot)
    for line in distribution.requires:
        found = _NAME.match(line.strip())
        if not found or (names and normalised(found.group()) not in names):
            continue
        try:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement
        except (InvalidRequirement, ValueError, KeyError):
            continue  # metadata that cannot be read is another rule's finding


def demands(snapshot: Snapshot, name: str) -> list[tuple[Distribution, SpecifierSet]]:
    """Return every installed distribution that restricts the version of project `name`, and how."""
    return [
        (distribution, requirement.specifier)
        for distribution in snapshot.distributions
        for requirement in demands_of(snapshot, distribution, name)
        if str(requirement.specifier)
    ]


def allowed(specifier: SpecifierSet, version: Version) -> bool:
    """Say whether `version` satisfies `specifier`; an installed pre-release or local build may."""
    return specifier.contains(version, prereleases=True)
