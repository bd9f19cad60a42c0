"""Detects changes to modules of the installed packages, with a digest of all their sizes and modification times.

Files that the interpreter runs at start-up are digested by content (`startup`). Other files of the static lane are
small. Editing a module in place changes neither RECORD nor its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from . import integrity, startup, watched

_SUFFIXES = (b".py", b".so", b".pyd")
_MAX_TREE_FILES = 20000  # per editable distribution


def digest_stamps(installed: list[dict[str, object]], site_dirs: list[str], with_all: bool = False) -> str:
    """Return a digest of path, size and modification time of every module of the watched distributions in `installed`.

    It includes the code that runs at interpreter start-up, which may change any of them. `with_all` takes every
    distribution and all folders, which reveal modules that belong to none.
    """
    import hashlib

    stamps = [startup.digest_startup(site_dirs).encode()]
    records = integrity.Records()
    folders = set(map(os.fsencode, site_dirs))
    for distribution in installed:
        if with_all or watched.is_watched(str(distribution["name"])):
            modules = list(_iter_modules(distribution, records))
            stamps += map(_stamp_file, modules)
            folders.update(map(os.path.dirname, modules))
    stamps += map(_stamp_file, sorted(folders) if with_all else ())
    return hashlib.sha256(b"\n".join(stamps)).hexdigest()


def digest_distribution(distribution: dict[str, object]) -> str:
    """Return a digest of path, size and modification time of one distribution's modules and their folders.

    The folders reveal modules that were added but are not in the list of files.
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
