"""C++ and CUDA extensions that the user's processes have already built: a rehearsal copies them.

Source: torch 2.13.0 utils/cpp_extension.py. `_get_build_directory` (2482): a folder for each extension, under
TORCH_EXTENSIONS_DIR, otherwise under torch_extensions/py312_cu130 of the user's cache. `_jit_compile`: ninja decides by
times and commands whether to build, and waits forever for the lock file of a killed build.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from attncheck.core.facts import Known, value_or
from attncheck.core.snapshot import Snapshot

LOCK = "lock"
FOLDER = "extensions"  # in a rehearsal's folder, where its processes search


def find_built(snapshot: Snapshot, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the examined torch's built extensions, None if it does not exist."""
    if environ.get("TORCH_EXTENSIONS_DIR"):
        folder = Path(environ["TORCH_EXTENSIONS_DIR"])
    elif isinstance(snapshot.torch, Known):
        cuda, hip = value_or(snapshot.torch.value.cuda, ""), value_or(snapshot.torch.value.hip, "")
        accelerator = f"rocm{hip}" if hip else f"cu{cuda}" if cuda else "cpu"
        python = f"py{snapshot.host.python_abi.removeprefix('cp')}"
        cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
        folder = Path(cache) / "torch_extensions" / f"{python}_{accelerator.replace('.', '')}"
    else:
        return None
    return folder if folder.is_dir() else None


def copy_built(built: Path, folder: Path) -> None:
    """Copy every complete extension and its files' modification times, so that ninja does not rebuild it."""
    for extension in sorted(built.iterdir()):
        if extension.is_dir() and not (extension / LOCK).exists() and any(extension.glob("*.so")):
            with contextlib.suppress(OSError):  # unreadable files are built again
                shutil.copytree(extension, folder / extension.name, symlinks=True, dirs_exist_ok=True)
