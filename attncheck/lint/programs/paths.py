"""Queries the file system about paths from other people's text; an invalid path is not a file, never an error."""

import os
from collections.abc import Iterator
from pathlib import Path

MAX_WALKED = 4000  # folders of a tree


def resolve_path(path: Path) -> Path:
    """Return a path without links and dots; unchanged if it cannot be resolved."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def find_files(top: Path, name: str) -> Iterator[Path | None]:
    """Yield the files of a tree that have a name, but for those in hidden folders; None if the tree is too large."""
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        if number > MAX_WALKED:
            yield None
            return
        if name in files:
            yield Path(folder, name)
