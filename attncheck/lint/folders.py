"""Finds the launch scripts and configuration files below a folder, and reports which are skipped and why.

Links are not followed: their target is either in the folder and found there, or does not belong to the folder.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from attncheck.core.io.errors import Unanswered

SUFFIXES = (
    ".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".pbs", ".job", ".yaml", ".yml", ".json", ".toml",
)  # fmt: skip
SKIPPED_FOLDERS = frozenset({
    ".git", ".hg", ".svn", ".tox", ".nox", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".ipynb_checkpoints", "__pycache__", "node_modules", "site-packages", "dist-packages",
})  # fmt: skip
# Files of tools that start nothing, and would only clutter the list of files that were not read.
TOOL_FILES = frozenset({"package-lock.json", "package.json", "tsconfig.json", "pyproject.toml", "uv.lock"})
MAX_FILES = 20_000
MAX_JSON_FILES = 300  # in one folder: more are rows of data
MAX_BYTES = 1 << 18  # for a file that the user did not name: a larger one is data


class FolderFiles(NamedTuple):
    """The files below a folder that may be launches, and the skipped ones with the reason."""

    paths: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def find_files(folder: str) -> FolderFiles:
    """Return the files below a folder, sorted by name. Raises `Unanswered` if there are too many."""
    paths: list[str] = []
    left_out: list[str] = []
    for path in _iter_files(folder, left_out):
        try:
            size = os.stat(path).st_size
        except OSError as error:
            left_out.append(f"{path}: {error.strerror}")
            continue
        if size > MAX_BYTES:
            left_out.append(f"{path}: larger than {MAX_BYTES >> 10} KiB")
        else:
            paths.append(path)
        if len(paths) > MAX_FILES:
            raise Unanswered(
                f"{folder}: more than {MAX_FILES} scripts and configuration files; choose a smaller folder"
            )
    return FolderFiles(tuple(paths), tuple(left_out))


def _iter_files(folder: str, left_out: list[str]) -> Iterator[str]:
    """Yield the files that may be launches; a folder that cannot be listed is left out."""

    def note(error: OSError) -> None:
        left_out.append(f"{error.filename}: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=note):
        environments = {name for name in folders if os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))}
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS - environments)
        rows = {name for name in files if name.lower().endswith(".json")}
        if len(rows) > MAX_JSON_FILES:
            left_out.append(f"{parent}: {len(rows):,} JSON files in one folder, which are data")
            files[:] = sorted(set(files) - rows)
        for name in sorted(files):
            path = os.path.normpath(os.path.join(parent, name))
            if name.lower().endswith(SUFFIXES) and name not in TOOL_FILES and not os.path.islink(path):
                yield path
