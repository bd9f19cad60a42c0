"""Queries the file system about paths from other people's text; an invalid path is not a file, never an error."""

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from attncheck.core.io.files import CannotRead, read_bounded, read_text

MAX_WALKED = 4000  # folders of a tree
LIBRARY_FOLDERS = frozenset({"trl", "transformers", "site-packages", "dist-packages"})
NAMING = re.compile(r"\.(?:py|sh|bash|slurm|sbatch|md|rst|txt|ipynb|ps1|bat)$|^Makefile|^justfile")
YAML_NAME = re.compile(r"[\w.-]+\.ya?ml\b")
OPEN_NAME = re.compile(r"\$\w+\.ya?ml\b|[]})>*]\.ya?ml\b")  # config_$SUFFIX.yaml, config_{suffix}.yaml, *.yaml
MAX_SCRIPTS, MAX_SCRIPT_BYTES = 2000, 1 << 20


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


@lru_cache(maxsize=256)
def may_contain(top: Path, word: str) -> bool:
    """Return whether a Python file of a tree contains a word, or cannot be read, or the tree is too large.

    Hidden folders and those of libraries are left out.
    """
    count = 0
    for folder, folders, files in os.walk(top):
        folders[:] = [inner for inner in folders if not inner.startswith(".") and inner not in LIBRARY_FOLDERS]
        scripts = [name for name in files if name.endswith(".py")]
        count += len(scripts)
        try:
            is_there = count > MAX_SCRIPTS or any(
                word.encode() in read_bounded(Path(folder, name), MAX_SCRIPT_BYTES) for name in scripts
            )
        except CannotRead:
            is_there = True
        if is_there:
            return True
    return False


def may_name(top: Path, name: str) -> bool:
    """Return whether a program, script or text of a tree may name a file, or another is named by a variable."""
    named = _list_named(top)
    return named is None or name in named


@lru_cache(maxsize=64)
def _list_named(top: Path) -> frozenset[str] | None:
    """Return the YAML files that a tree's own texts name; None if a variable names some, or it is too large."""
    named: set[str] = set()
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        folders[:] = [inner for inner in folders if not inner.startswith(".") and inner not in LIBRARY_FOLDERS]
        texts = "\n".join(read_text(Path(folder, name)) for name in files if NAMING.search(name))
        named.update(YAML_NAME.findall(texts))
        if number > MAX_WALKED or OPEN_NAME.search(texts):
            return None
    return frozenset(named)


def lacks_word(top: Path, word: str) -> bool:
    """Return whether a tree has programs, and none of its Python files contains a word."""
    return may_contain(top, "import ") and not may_contain(top, word)
