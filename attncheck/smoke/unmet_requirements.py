"""What packages in a folder require that neither the folder nor the environment has."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from attncheck.core.facts import Known
from attncheck.core.snapshot import Snapshot

# Never put into a temporary folder: gigabytes, and what the environment's binaries were built for.
KEPT = ("torch", "triton", "pytorch-triton", "flash-attn", "nvidia-")


def unmet(folder: Path, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the requirements, fit for an installer, that the packages in `folder` would miss in the environment."""
    here = dict(_versions(folder))
    found: dict[str, str] = {}
    for requirement in _requirements(folder):
        name = canonicalize_name(requirement.name)
        if name.startswith(KEPT) or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = here.get(name) or _installed(snapshot, name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            found[name] = f"{requirement.name}{requirement.specifier}"
    return tuple(found.values())


def _installed(snapshot: Snapshot, name: str) -> Version | None:
    version = snapshot.version(name)
    return version.value if isinstance(version, Known) else None


def _versions(folder: Path) -> Iterator[tuple[str, Version]]:
    for header in _headers(folder):
        try:
            yield canonicalize_name(header.get("Name", "")), Version(header.get("Version", ""))
        except InvalidVersion:
            continue


def _requirements(folder: Path) -> Iterator[Requirement]:
    for header in _headers(folder):
        for line in header.get_all("Requires-Dist") or ():
            try:
                yield Requirement(line)
            except InvalidRequirement:
                continue


def _headers(folder: Path) -> Iterator[Message]:
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        with path.open(encoding="utf-8", errors="replace") as stream:
            yield HeaderParser().parse(stream, headersonly=True)
