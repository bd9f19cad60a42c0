"""Caches the linker's records: one small file per environment, in attncheck's own folder.

Its name is a digest of everything that was read: the versions, and size and modification time of every module of the
consuming and the providing packages. torch, with its thousands of modules, is represented by its list of files.
"""

from __future__ import annotations

import json
import os

from .. import files
from ..packages import stamps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List

    Records = Dict[str, List[Dict[str, Any]]]

MAX_BYTES = 8 << 20
MAX_FILES = 64
FORM = 1  # version of the cached form; attncheck's own version is part of the key too


def make_key(installed: Iterable[dict[str, Any]], watched: Iterable[str], release: str) -> str:
    """Return the digest that names the records of these distributions; "" if one has no list of its files."""
    import hashlib
    import sys

    names = set(watched)
    digest = hashlib.sha256(repr((FORM, release, sys.version_info[:3], sys.platform)).encode())
    for distribution in installed:
        if distribution["name"] not in names:
            continue
        stamp = _stamp(distribution)
        if not stamp:
            return ""
        facts = distribution["name"], distribution["version"], distribution["location"], stamp
        digest.update(repr(facts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _stamp(distribution: dict[str, Any]) -> str:
    record = os.path.join(str(distribution["_path"]), "RECORD")
    try:
        status = os.stat(record)
    except (OSError, ValueError):
        return ""
    if distribution["name"] == "torch":
        return "%d %d" % (status.st_size, status.st_mtime_ns)
    return stamps.digest_distribution(distribution)


def read_records(folder: str, key: str) -> Records | None:
    """Return the records cached under `key`; None if there are none or they cannot be read."""
    if not key:
        return None
    try:
        document = json.loads(files.read_text(_path(folder, key), MAX_BYTES))
    except ValueError:
        return None
    is_ours = isinstance(document, dict) and document.get("key") == key and isinstance(document.get("records"), dict)
    return document["records"] if is_ours else None


def write_records(folder: str, key: str, records: Records) -> None:
    """Cache `records` with an atomic rename; if the disk does not allow that, nothing is cached or reported."""
    if not key:
        return
    temporary = "%s.%d" % (_path(folder, key), os.getpid())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
            json.dump({"key": key, "records": records}, stream)
        os.replace(temporary, _path(folder, key))
        _remove_oldest(folder)
    except (OSError, ValueError):
        try:
            os.unlink(temporary)
        except OSError:
            pass


def _remove_oldest(folder: str) -> None:
    kept = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("links-")]
    for path in sorted(kept, key=os.path.getmtime)[:-MAX_FILES]:
        os.unlink(path)


def _path(folder: str, key: str) -> str:
    return os.path.join(folder, "links-%s.json" % key)
