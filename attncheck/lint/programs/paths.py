"""Queries the file system about paths from other people's text; an invalid path is not a file, never an error."""

from pathlib import Path


def resolve_path(path: Path) -> Path:
    """Return a path without links and dots; unchanged if it cannot be resolved."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path
