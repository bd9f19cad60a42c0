"""The interpreters of this machine by their version: those that are named, on PATH, pyenv's and uv's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VARIABLE = "ATTNCHECK_PYTHONS"  # the only interpreters to take, written as PATH is
ASK_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find_interpreter(version: str) -> str | None:
    """Return an interpreter of this version that starts, or None."""
    return next((path for path in list_candidates(version) if read_version(path) == version), None)


def list_candidates(version: str) -> list[str]:
    """Return the paths at which an interpreter of this version may be."""
    named = os.environ.get(VARIABLE)
    if named:
        return named.split(os.pathsep)
    on_path = shutil.which(f"python{version}")
    pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    managed = uv.glob(f"cpython-{version}.*/bin/python{version}")
    return [*([on_path] if on_path else []), *map(str, sorted(pyenv)), *map(str, sorted(managed))]


def read_version(path: str) -> str:
    """Return the version of an interpreter, "" for one that does not start."""
    try:
        return subprocess.run([path, "-c", ASK_VERSION], capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        return ""
