"""Reads the names and METADATA of wheels on this machine; runs nothing from them.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from attncheck.core.io.errors import BadUsage
from attncheck.doctor.probes.payload.packages import metadata

METADATA_LIMIT = 1 << 21  # bytes


@dataclass(frozen=True)
class WheelFile:
    """A wheel on disk. `version` includes its name's local part: "2.8.3+cu12torch2.8cxx11abitrue"."""

    path: str  # absolute
    name: str
    version: str
    tags: frozenset[str]  # "cp311-cp311-manylinux_2_28_x86_64"
    requires: tuple[str, ...]
    requires_python: str

    @property
    def file_name(self) -> str:
        """The file's name without the folder."""
        return os.path.basename(self.path)


def read_wheel(path: str) -> WheelFile:
    """Return a wheel. Raises `BadUsage` if the file is not a wheel, or cannot be read."""
    name, version, tags = _parse_file_name(path)
    try:
        with zipfile.ZipFile(path) as archive:
            headers = metadata.parse_headers(_read_metadata(archive, path))[0]
    except FileNotFoundError:
        raise BadUsage(f"{path}: no such file") from None
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise BadUsage(f"{path} cannot be read as a wheel: {error}") from None
    requires_python = headers.get("requires-python", [""])[0]
    return WheelFile(
        os.path.abspath(path), name, version, tags, tuple(headers.get("requires-dist", ())), requires_python
    )


def find_wheel(
    folders: Sequence[str], name: str, specifier: SpecifierSet, host_tags: frozenset[str]
) -> WheelFile | None:
    """Return a package's newest wheel that `specifier` allows and whose tags fit, or any if none fits."""
    candidates = [
        (not tags.isdisjoint(host_tags), Version(version), path)
        for path, version, tags in _list_wheels(folders, name)
        if specifier.contains(version, prereleases=True)
    ]
    return read_wheel(max(candidates)[2]) if candidates else None


def _list_wheels(folders: Sequence[str], name: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    for folder in folders:
        for entry in sorted(os.listdir(folder)):
            if not entry.endswith(".whl"):
                continue
            path = os.path.join(folder, entry)
            try:
                wheel_name, version, tags = _parse_file_name(path)
            except BadUsage:
                continue  # a wheel of a package that was not named
            if wheel_name == name:
                yield path, version, tags


def _parse_file_name(path: str) -> tuple[str, str, frozenset[str]]:
    try:
        name, version, _, tags = parse_wheel_filename(os.path.basename(path))
    except InvalidWheelFilename as error:
        raise BadUsage(f"{path} does not have a wheel's file name: {error}") from None
    return str(canonicalize_name(name)), str(version), frozenset(map(str, tags))


def _read_metadata(archive: zipfile.ZipFile, path: str) -> bytes:
    """Return METADATA. Raises `BadUsage` if the archive has none, or an unreasonable one."""
    entries = [
        entry
        for entry in archive.infolist()
        if entry.filename.count("/") == 1 and entry.filename.endswith(".dist-info/METADATA")
    ]
    if len(entries) != 1:
        raise BadUsage(f"{path} has no METADATA, so it is not a wheel")
    with archive.open(entries[0]) as stream:  # reads at most the limit, whatever size the archive claims
        return stream.read(METADATA_LIMIT)
