"""Finds the shared libraries that a binary needs, in the places that the loader searches after torch is imported."""

from __future__ import annotations

import os

from .. import files
from .elf import Elf, ElfError

# The loader's default directories, for machines whose cache cannot be read.
SYSTEM_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")

# torch's libraries that are linked against CUDA libraries.
TORCH_CUDA_LIBRARIES = ("libtorch_global_deps.so", "libc10_cuda.so", "libtorch_cuda.so")


class LibraryFinder:
    """Finds libraries: next to torch, in NVIDIA's wheels, on LD_LIBRARY_PATH, and in the loader's cache.

    `import torch` loads its own libraries and NVIDIA's. An extension imported later therefore finds them even if its
    own search path does not include them (torch/__init__.py, `_load_global_deps` and `_preload_cuda_deps`).
    """

    def __init__(self, site_dirs: list[str], torch: str) -> None:
        self.torch_folder = os.path.join(torch, "lib") if torch else ""
        self.nvidia_folders = [
            folder for site in site_dirs for folder in _nvidia_library_folders(os.path.join(site, "nvidia"))
        ]
        self.folders = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        if torch:
            self.folders.insert(0, self.torch_folder)
        self._torch_needs: dict[str, str] | None = None
        self._loader_cache: bytes | None = None
        self._paths: dict[str, str] = {}

    def find(self, name: str, search_path: list[str], origin: str) -> str:
        """Return the path of the library `name`; "system" if it is in the loader's cache, "" if it was not found."""
        for part in search_path:
            path = os.path.join(part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin), name)
            if os.path.exists(path):
                return path
        if name not in self._paths:
            self._paths[name] = self._search(name)
        return self._paths[name]

    def _search(self, name: str) -> str:
        folders = self.folders if self._is_other_version_loaded(name) else [*self.folders, *self.nvidia_folders]
        for folder in folders:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                return path
        if self._loader_cache is None:
            self._loader_cache = read_loader_cache()
        if b"/" + name.encode() + b"\0" in self._loader_cache:
            return "system"
        return "system" if any(os.path.exists(os.path.join(folder, name)) for folder in SYSTEM_FOLDERS) else ""

    def _is_other_version_loaded(self, name: str) -> bool:
        """Return whether torch needs another version of this library; a wheel's leftover copy is then never loaded."""
        if self._torch_needs is None:
            self._torch_needs = _needed_by_torch(self.torch_folder)
        base = name.partition(".so")[0]
        return self._torch_needs.get(base, name) != name


def _needed_by_torch(folder: str) -> dict[str, str]:
    """Return the libraries that torch's own libraries need, by their name without a version."""
    needed_by_base: dict[str, str] = {}
    for name in TORCH_CUDA_LIBRARIES:
        try:
            with Elf(os.path.join(folder, name)) as elf:
                needed_by_base.update((needed.partition(".so")[0], needed) for needed in elf.needed_libraries())
        except ElfError:
            continue
    return needed_by_base


def _nvidia_library_folders(folder: str) -> list[str]:
    """Return the library directories of NVIDIA's wheels: nvidia/cudnn/lib, nvidia/cu13/lib, …"""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [os.path.join(folder, name, "lib") for name in names]
    return [path for path in paths if os.path.isdir(path)]


def read_loader_cache() -> bytes:
    """Return the loader's cache; empty if it cannot be read."""
    return files.read_content("/etc/ld.so.cache", 4 << 20)
