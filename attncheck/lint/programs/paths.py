"""Asks the file system about paths that other people's text names: a path that cannot be is not a file, never an
error."""

from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether a path is a file; not for one too long, with a NUL, or that may not be looked at."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; not for one too long, with a NUL, or that may not be looked at."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def resolve_path(path: Path) -> Path:
    """Return a path without links and dots; as it is if that cannot be determined."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path
