"""Tells whether a module of the installed packages was changed since: a digest of all their sizes and times.

What the interpreter runs when it starts is digested by its contents (`startup`). What else the static lane reads is
small; a module that is edited where it lies changes neither RECORD nor its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from . import integrity, startup, watched

_SUFFIXES = (b".py", b".so", b".pyd")
_MAX_TREE_FILES = 20000  # of one editable distribution


def digest_stamps(installed: list[dict[str, object]], site_dirs: list[str]) -> str:
    """Return a digest of path, size and time of change of every module of the watched ones among `installed`.

    What runs when the interpreter starts, and may change any of them, is part of it.
    """
    import hashlib

    stamps = [startup.digest_startup(site_dirs).encode()]
    records = integrity.Records()
    for distribution in installed:
        if watched.is_watched(str(distribution["name"])):
            stamps += map(_stamp_file, _iter_modules(distribution, records))
    return hashlib.sha256(b"\n".join(stamps)).hexdigest()


def digest_distribution(distribution: dict[str, object]) -> str:
    """Return a digest of path, size and time of change of every module of one distribution, and of their folders.

    The folders tell of modules that came without the list of files.
    """
    import hashlib

    modules = list(_iter_modules(distribution, integrity.Records()))
    folders = sorted({os.path.dirname(path) for path in modules})
    return hashlib.sha256(b"\n".join(map(_stamp_file, [*modules, *folders]))).hexdigest()


def _stamp_file(path: bytes) -> bytes:
    try:
        status = os.stat(path)
        return b"%s\0%d\0%d" % (path, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError):
        return path


def _iter_modules(distribution: dict[str, object], records: integrity.Records) -> Iterator[bytes]:
    folder = os.fsencode(str(distribution["location"])) + b"/"
    for line in records[str(distribution["_path"])].split(b"\n"):
        path = line.rsplit(b",", 2)[0]
        if path.endswith(_SUFFIXES):
            yield folder + path
    url = str(distribution["direct_url"])
    if distribution["editable"] and url.startswith("file://"):
        from itertools import islice
        from urllib.parse import unquote

        yield from islice(_iter_tree(os.fsencode(unquote(url[7:]))), _MAX_TREE_FILES)


def _iter_tree(tree: bytes) -> Iterator[bytes]:
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if not name.startswith(b"."))
        yield from (folder + b"/" + name for name in sorted(names) if name.endswith(_SUFFIXES))
