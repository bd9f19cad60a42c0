"""Compares RECORD with the files on disk."""

from __future__ import annotations

import os

from .. import files
from . import metadata, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    RecordsBase = Dict[str, bytes]
else:
    RecordsBase = dict

_RECORD_LIMIT = 1 << 24  # torch's RECORD is 1.5 MB
_MAX_FILES = 200  # files per list
_MAX_HASHED_FILE = 1 << 18  # larger files are compared only by size
_MAX_HASHED_TOTAL = 1 << 24


class Records(RecordsBase):
    """RECORD by metadata directory, read on first use; empty if it does not exist."""

    def __missing__(self, path: str) -> bytes:
        """Read the RECORD in the metadata directory `path`."""
        try:
            self[path] = files.read_bytes(path + "/RECORD", _RECORD_LIMIT) if path.endswith(".dist-info") else b""
        except (OSError, ValueError):
            self[path] = b""
        return self[path]


def check_files(distribution: dict[str, Any], records: Records, names: frozenset[str]) -> None:
    """Fill in "files_missing" and, by size, "files_altered", and note a package whose files are all missing.

    `names` are the entries of the site directory.
    """
    if (
        distribution["editable"]
        or distribution["problem"].startswith("left behind")
        or not distribution["_path"].endswith(".dist-info")
    ):
        return
    if watched.is_compared(distribution["name"]) and records[distribution["_path"]]:
        _compare_sizes(distribution, records[distribution["_path"]])
    else:
        top_names = top_level_names(distribution, records)
        gone = bool(top_names) and not any(_is_present(top_name, names) for top_name in top_names)
        if gone:
            add_problem(distribution, "its files no longer exist; only its metadata is left")


def top_level_names(distribution: dict[str, Any], records: Records) -> set[str]:
    """Return the import names that a distribution provides, from top_level.txt or else from RECORD."""
    text = files.read_text(distribution["_path"] + "/top_level.txt")
    if text.strip():
        return {line.strip() for line in text.splitlines() if line.strip()}
    record = records[distribution["_path"]]
    parts = {line.partition(b"/")[0] if b"/" in line else line.partition(b",")[0] for line in record.split(b"\n")}
    names = {part.decode("utf-8", "replace").strip() for part in parts}
    return {
        name.partition(".")[0] if name.endswith((".py", ".so", ".pyd")) else name
        for name in names
        if name and not name.startswith((".", "__", "/", '"')) and not name.endswith((".dist-info", ".data", ".pth"))
    }


def package_files(record: bytes) -> list[tuple[str, str, int]]:
    """Return RECORD's lines about the package's own files: no bytecode, no metadata, no script outside the package."""
    return [
        row
        for row in metadata.parse_record(record)
        if not row[0].endswith(".pyc")
        and not row[0].startswith(("../", "/"))
        and ".dist-info/" not in row[0]
        and ".." not in row[0].split("/")
        and "\0" not in row[0]
    ]


def hash_record(record: bytes) -> str:
    """Return the sha256 of RECORD's lines about the package's own files; "" if there are none.

    Lines added by an installer (bytecode, INSTALLER, scripts that name the environment's Python) are left out, so that
    the same wheel has the same hash in every environment.
    """
    lines = {
        line.strip()
        for line in record.splitlines()
        if not line.startswith((b"../", b"/", b'"/', b'"..')) and b".dist-info/" not in line and b".pyc," not in line
    }
    lines.discard(b"")
    import hashlib

    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest() if lines else ""


def compare_contents(installed: list[dict[str, Any]], records: Records) -> None:
    """Extend "files_altered" by hash if flash-attn distributions share a directory, where equal sizes prove nothing."""
    remaining = _MAX_HASHED_TOTAL
    suspects = [
        distribution
        for distribution in installed
        if distribution["name"].startswith("flash-attn") and not distribution["editable"]
    ]
    locations = [distribution["location"] for distribution in suspects]
    for distribution in suspects:
        if locations.count(distribution["location"]) < 2:
            continue
        for path, digest, size in package_files(records[distribution["_path"]]):
            if not 0 <= size <= _MAX_HASHED_FILE or size > remaining or path in distribution["files_altered"]:
                continue
            remaining -= size
            if len(distribution["files_altered"]) < _MAX_FILES and _hash_differs(
                os.path.join(distribution["location"], path), digest
            ):
                distribution["files_altered"].append(path)


def _compare_sizes(distribution: dict[str, Any], record: bytes) -> None:
    rows = package_files(record)
    missing = 0
    for path, _, size in rows:
        try:
            actual = os.stat(os.path.join(distribution["location"], path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            missing += 1
            if missing <= _MAX_FILES:
                distribution["files_missing"].append(path)
            continue
        except (OSError, ValueError):
            continue  # an unreadable file does not count as altered
        if size >= 0 and actual != size and len(distribution["files_altered"]) < _MAX_FILES:
            distribution["files_altered"].append(path)
    if rows and missing == len(rows):
        add_problem(distribution, "its files no longer exist; only its metadata is left")


def _hash_differs(path: str, digest: str) -> bool:
    import base64
    import hashlib

    if not digest.startswith("sha256="):
        return False
    try:
        data = files.read_bytes(path, _MAX_HASHED_FILE + 1)
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != digest[7:].rstrip("=")


def _is_present(top_name: str, names: frozenset[str]) -> bool:
    return top_name in names or top_name + ".py" in names or any(name.startswith(top_name + ".") for name in names)


def add_problem(distribution: dict[str, Any], problem: str) -> None:
    """Add a problem to those of a distribution."""
    distribution["problem"] = distribution["problem"] + "; " + problem if distribution["problem"] else problem
