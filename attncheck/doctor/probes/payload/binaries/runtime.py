"""The compiler's runtime libraries, libstdc++ and libgcc: which copy Python will load, and which versions it offers.

A process loads only one copy, the first one requested. After torch is imported, that is the copy that torch's libraries
found. The order is the loader's (glibc, elf/dl-load.c, _dl_map_object): DT_RPATH of the requesting file and of the
program, LD_LIBRARY_PATH, DT_RUNPATH, the loader's cache. Other copies on this machine are also listed, for use in a
fix.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from .. import files
from . import torch_files
from .elf import Elf, ElfError
from .libraries import SYSTEM_FOLDERS, read_loader_cache

NAMESPACES = ("GLIBCXX", "CXXABI", "GCC")
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")
FIRST_TORCH_LIBRARIES = ("libtorch_global_deps.so", "libc10.so")  # loaded first, torch/__init__.py


def collect_runtime_libraries(site_dirs: list[str]) -> list[dict[str, object]]:
    """Return a `core.environment.RuntimeLibrary` record of each copy found; for each name, the loaded copy first."""
    if not sys.platform.startswith("linux"):
        return []
    torch = torch_files.find_torch_folder(site_dirs)
    records: list[dict[str, object]] = []
    for name in LIBRARIES:
        seen = set()
        for path, found_by in _list_copies(name, torch):
            real = os.path.realpath(path)
            provides = _read_versions(path) if real not in seen else {}
            seen.add(real)
            if provides:
                records.append({"name": name, "path": path, "found_by": found_by, "provides": provides})
    return records


def _read_versions(path: str) -> dict[str, str]:
    """Return the versions that the library offers; empty if this Python could not load the file."""
    try:
        with Elf(path) as library, Elf(sys.executable) as program:
            versions = library.defined_versions() if library.machine == program.machine else {}
    except ElfError:
        return {}
    return {name: versions[name] for name in NAMESPACES if name in versions}


def _list_copies(name: str, torch: str) -> Iterator[tuple[str, str]]:
    """Yield each location of the library `name` and why it is searched, in the loader's order, then the others."""
    loaded = re.search(r"\s(/\S*/%s[\d.]*)\n" % re.escape(name), files.read_text("/proc/self/maps", 4 << 20))
    if loaded:
        yield loaded.group(1), "loaded"
    for folder, found_by in _search_folders(torch):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            yield path, found_by
    cached = re.search(rb"(/[^\0]*/%s)\0" % re.escape(name.encode()), read_loader_cache())
    if cached:
        yield cached.group(1).decode("utf-8", "replace"), "system"
    for folder in SYSTEM_FOLDERS:
        yield os.path.join(folder, name), "system"
    yield os.path.join(sys.base_prefix, "lib", name), "prefix"


def _search_folders(torch: str) -> Iterator[tuple[str, str]]:
    asking, has_runpath = _read_search_path(
        next(
            (path for path in (os.path.join(torch, "lib", n) for n in FIRST_TORCH_LIBRARIES) if os.path.exists(path)),
            "",
        )
    )
    program, program_has_runpath = _read_search_path(os.path.realpath(sys.executable))
    if not has_runpath:
        yield from ((folder, "torch") for folder in asking)
        if not program_has_runpath:
            yield from ((folder, "python") for folder in program)
    yield from ((part, "LD_LIBRARY_PATH") for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part)
    if has_runpath:
        yield from ((folder, "torch") for folder in asking)


def _read_search_path(path: str) -> tuple[list[str], bool]:
    """Return the folders in a file's own search path, and whether it is a DT_RUNPATH."""
    if not path:
        return [], False
    origin = os.path.dirname(os.path.realpath(path))
    try:
        with Elf(path) as elf:
            parts = elf.search_path()
            return [part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for part in parts], elf.has_runpath()
    except ElfError:
        return [], False
