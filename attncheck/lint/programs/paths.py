"""Queries the file system about paths from other people's text; an invalid path is not a file, never an error."""

from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False if it is too long, contains a NUL, or may not be accessed."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False if it is too long, contains a NUL, or may not be accessed."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def resolve_path(path: Path) -> Path:
    """Return a path without links and dots; unchanged if it cannot be resolved."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path
