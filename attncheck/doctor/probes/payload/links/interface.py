"""The linker's interface: records about an environment, cached between runs, and about a model's own code.

The linker itself is loaded only if there is something to read.
"""

from __future__ import annotations

import os

from . import packages, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Record = Dict[str, Any]


def link_installed(installed: list[dict[str, Any]], site_dirs: list[str], folder: str, release: str) -> list[Record]:
    """Return the records of all installed packages of the stack; they are cached in `folder` ("": no cache).

    `release` is the version of attncheck and part of the cache key.
    """
    consumers = packages.choose_consumers(installed)
    if not consumers:
        return []
    key = store.make_key(installed, packages.WATCHED.union(consumers), release) if folder else ""
    kept = store.read_records(folder, key) if key else None
    if kept is None:
        from . import linker

        kept = linker.link_distributions(installed, site_dirs, consumers)
        store.write_records(folder, key, kept)
    records = [record for records in kept.values() for record in records]
    return [dict(record, path=_shorten(str(record["path"]), site_dirs)) for record in records]


def link_model(source: str, installed: list[dict[str, Any]], site_dirs: list[str]) -> list[Record]:
    """Return the records of the files that a model's `auto_map` names, and of neighbouring files that they import."""
    from ..model import files as model_files
    from ..model import remote_code

    folder = model_files.find_model_folder(source)
    paths = remote_code.list_code_files(folder["known"]) if "known" in folder else []
    if not paths:
        return []
    from .own_code import OwnCodeLinker

    records = OwnCodeLinker(installed, site_dirs).link("model", paths, [])
    return [dict(record, path=_shorten(str(record["path"]), [folder["known"]])) for record in records]


def _shorten(path: str, folders: list[str]) -> str:
    """Return a path in display form: relative to the folder of sys.path that contains it."""
    return next((path[len(folder) + 1 :] for folder in folders if path.startswith(folder + os.sep)), path)
