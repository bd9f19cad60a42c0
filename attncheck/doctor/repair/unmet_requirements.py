"""Finds requirements of packages in a folder that neither the folder nor the environment meets."""

from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from attncheck.core.snapshot import Known, Snapshot

# Never installed into a temporary folder: they take gigabytes, and the environment's binaries were built for them.
NEVER_INSTALLED = ("torch", "triton", "pytorch-triton", "flash-attn", "nvidia-")


def find_unmet_requirements(folder: Path, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the unmet requirements of the packages in `folder`, in an installer's notation."""
    folder_versions = dict(_iter_versions(folder))
    unmet: dict[str, str] = {}
    for requirement in _iter_requirements(folder):
        name = canonicalize_name(requirement.name)
        if name.startswith(NEVER_INSTALLED) or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        version = folder_versions.get(name) or _installed_version(snapshot, name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unmet[name] = f"{requirement.name}{requirement.specifier}"
    return tuple(unmet.values())


def _installed_version(snapshot: Snapshot, name: str) -> Version | None:
    version = snapshot.version(name)
    return version.value if isinstance(version, Known) else None


def _iter_versions(folder: Path) -> Iterator[tuple[str, Version]]:
    for metadata in _iter_metadata(folder):
        try:
            yield canonicalize_name(metadata.get("Name", "")), Version(metadata.get("Version", ""))
        except InvalidVersion:
            continue


def _iter_requirements(folder: Path) -> Iterator[Requirement]:
    for metadata in _iter_metadata(folder):
        for line in metadata.get_all("Requires-Dist") or ():
            try:
                yield Requirement(line)
            except InvalidRequirement:
                continue


def _iter_metadata(folder: Path) -> Iterator[Message]:
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        with path.open(encoding="utf-8", errors="replace") as stream:
            yield HeaderParser().parse(stream, headersonly=True)
