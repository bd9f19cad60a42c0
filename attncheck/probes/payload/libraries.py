"""Finds the shared libraries that a binary needs, where the loader would find them once torch is imported."""

from __future__ import annotations

import os

from . import files

# The loader's own directories, for machines whose cache cannot be read.
SYSTEM = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")


class Libraries:
    """Where libraries lie: beside torch, in NVIDIA's wheels, on LD_LIBRARY_PATH, in the loader's cache.

    `import torch` loads its own libraries and NVIDIA's, so that an extension imported after it finds them although no
    search path of its own leads there (torch/__init__.py, `_load_global_deps` and `_preload_cuda_deps`).
    """

    def __init__(self, site_dirs: list[str], torch: str) -> None:
        self.folders = [os.path.join(torch, "lib")] if torch else []
        for site in site_dirs:
            self.folders += _nvidia(os.path.join(site, "nvidia"))
        self.folders += [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        self._cache: bytes | None = None
        self._found: dict[str, str] = {}

    def find(self, name: str, search_path: list[str], origin: str) -> str:
        """Return the path of the library `name`; "system" for one the loader's cache holds, "" for none."""
        for part in search_path:
            path = os.path.join(part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin), name)
            if os.path.exists(path):
                return path
        if name not in self._found:
            self._found[name] = self._search(name)
        return self._found[name]

    def _search(self, name: str) -> str:
        for folder in self.folders:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                return path
        if self._cache is None:
            self._cache = _cache()
        if name.encode() + b"\0" in self._cache:
            return "system"
        return "system" if any(os.path.exists(os.path.join(folder, name)) for folder in SYSTEM) else ""


def _nvidia(folder: str) -> list[str]:
    """Return the library directories of NVIDIA's wheels: nvidia/cudnn/lib, nvidia/cu13/lib, …"""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [os.path.join(folder, name, "lib") for name in names]
    return [path for path in paths if os.path.isdir(path)]


def _cache() -> bytes:
    try:
        return files.read("/etc/ld.so.cache", 4 << 20)
    except (OSError, ValueError):
        return b""
