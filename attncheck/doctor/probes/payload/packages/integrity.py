"""Compares what RECORD promises with what is on disk."""

from __future__ import annotations

import os

from .. import files
from . import metadata, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Base = Dict[str, bytes]
else:
    Base = dict

_RECORD_LIMIT = 1 << 24  # torch's RECORD is 1.5 MB
_MOST = 200  # files named in one list
_HASHED_FILE = 1 << 18  # larger files are compared by size alone
_HASHED_TOTAL = 1 << 24


class Records(Base):
    """RECORD by metadata directory, read when first asked for; empty where there is none."""

    def __missing__(self, path: str) -> bytes:
        """Read the RECORD in the metadata directory `path`."""
        try:
            self[path] = files.read(path + "/RECORD", _RECORD_LIMIT) if path.endswith(".dist-info") else b""
        except (OSError, ValueError):
            self[path] = b""
        return self[path]


def inspect(item: dict[str, Any], records: Records, names: frozenset[str]) -> None:
    """Fill in "files_missing" and "files_altered" by size, and tell of a package whose files are all gone.

    `names` is what lies in the site directory.
    """
    if item["editable"] or item["problem"].startswith("left behind") or not item["_path"].endswith(".dist-info"):
        return
    if watched.is_compared(item["name"]) and records[item["_path"]]:
        _compare_sizes(item, records[item["_path"]])
    else:
        tops = top_level(item, records)
        gone = bool(tops) and not any(_is_there(top, names) for top in tops)
        if gone:
            _add(item, "its files are gone, only its metadata is left")


def top_level(item: dict[str, Any], records: Records) -> set[str]:
    """Return the import names a distribution brings, from top_level.txt or else from RECORD."""
    text = files.text(item["_path"] + "/top_level.txt")
    if text.strip():
        return {line.strip() for line in text.splitlines() if line.strip()}
    record = records[item["_path"]]
    firsts = {line.partition(b"/")[0] if b"/" in line else line.partition(b",")[0] for line in record.split(b"\n")}
    tops = {first.decode("utf-8", "replace").strip() for first in firsts}
    return {
        top.partition(".")[0] if top.endswith((".py", ".so", ".pyd")) else top
        for top in tops
        if top and not top.startswith((".", "__", "/", '"')) and not top.endswith((".dist-info", ".data", ".pth"))
    }


def package_files(record: bytes) -> list[tuple[str, str, int]]:
    """Return RECORD's lines about the package's own files: no bytecode, no metadata, no script outside."""
    return [
        row
        for row in metadata.record(record)
        if not row[0].endswith(".pyc")
        and not row[0].startswith(("../", "/"))
        and ".dist-info/" not in row[0]
        and ".." not in row[0].split("/")
        and "\0" not in row[0]
    ]


def compare_contents(found: list[dict[str, Any]], records: Records) -> None:
    """Add to "files_altered" by hash, where flash-attn distributions share one directory and size may deceive."""
    left = _HASHED_TOTAL
    suspects = [item for item in found if item["name"].startswith("flash-attn") and not item["editable"]]
    places = [item["location"] for item in suspects]
    for item in suspects:
        if places.count(item["location"]) < 2:
            continue
        for path, digest, size in package_files(records[item["_path"]]):
            if not 0 <= size <= _HASHED_FILE or size > left or path in item["files_altered"]:
                continue
            left -= size
            if len(item["files_altered"]) < _MOST and _hash_differs(os.path.join(item["location"], path), digest):
                item["files_altered"].append(path)


def _compare_sizes(item: dict[str, Any], record: bytes) -> None:
    rows = package_files(record)
    missing = 0
    for path, _, size in rows:
        try:
            actual = os.stat(os.path.join(item["location"], path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            missing += 1
            if missing <= _MOST:
                item["files_missing"].append(path)
            continue
        except (OSError, ValueError):
            continue  # unreadable is not altered
        if size >= 0 and actual != size and len(item["files_altered"]) < _MOST:
            item["files_altered"].append(path)
    if rows and missing == len(rows):
        _add(item, "its files are gone, only its metadata is left")


def _hash_differs(path: str, digest: str) -> bool:
    import base64
    import hashlib

    if not digest.startswith("sha256="):
        return False
    try:
        data = files.read(path, _HASHED_FILE + 1)
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != digest[7:].rstrip("=")


def _is_there(top: str, names: frozenset[str]) -> bool:
    return top in names or top + ".py" in names or any(name.startswith(top + ".") for name in names)


def _add(item: dict[str, Any], problem: str) -> None:
    item["problem"] = item["problem"] + "; " + problem if item["problem"] else problem
