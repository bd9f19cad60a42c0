"""Reads the attention stack's compiled extensions: do they fit this torch, these libraries, this glibc, these GPUs?"""

from __future__ import annotations

import os
import re
import sys

from ..packages import torch_files
from . import extension_files, fatbin
from .elf import Elf, ElfError
from .extension_files import TORCH_LIBRARIES
from .libraries import Libraries

MOST_BINARIES = 60
MOST_SYMBOLS = 200  # of the missing: more than anyone reads

# What libtorch exports: names in its own namespaces, those of std and pybind11 made for its types (libtorch_python
# holds pybind11's caster for at::Tensor), and its C entry points. A package's own function that takes a tensor is not.
_TORCH_NAME = re.compile(
    r"_Z(?:T[A-Za-z]|GV)?(?:N[KVRO]*)?(?:2at|3c10|5torch|6caffe2)"
    r"|_Z(?:T[A-Za-z]|GV)?(?:N[KVRO]*)?(?:S[tabdios]|8pybind11)\w*?N[KVRO]*(?:2at|3c10|5torch|6caffe2)"
    r"|THP[A-Z]|aoti_torch_|torch_|c10_"
)
_TAG = re.compile(r"\.(cpython-\d+t?|pypy\d+[-\w]*?|abi3)(?:-[\w-]+)?\.so$")


def look(
    found: list[dict[str, object]], site_dirs: list[str], problems: list[str] | None = None
) -> list[dict[str, object]]:
    """Return a record for each extension of the watched distributions and for torch's own libraries.

    What is left out for being too much is told in `problems`.
    """
    if not sys.platform.startswith("linux"):
        return []
    torch = torch_files.folder(site_dirs)
    libraries = Libraries(site_dirs, torch)
    paths = extension_files.find(found, site_dirs, torch)
    if len(paths) > MOST_BINARIES and problems is not None:
        problems.append("binaries: %d of %d were not read" % (len(paths) - MOST_BINARIES, len(paths)))
    with _Exports(torch) as exports:
        records = [_describe(name, path, site_dirs, libraries, exports) for name, path in paths[:MOST_BINARIES]]
    return _without_twins(records)


def _without_twins(records: list[dict[str, object]]) -> list[dict[str, object]]:
    """Leave out a module built for another Python where the same module is there for this one too."""
    fitting = {record["module"] for record in records if not str(record["problem"]).startswith("built for ")}
    return [
        record
        for record in records
        if not str(record["problem"]).startswith("built for ") or record["module"] not in fitting
    ]


class _Exports:
    """The symbols that torch's libraries define, asked one at a time."""

    def __init__(self, torch: str) -> None:
        self.known = bool(torch)
        self._libraries = []
        for name in TORCH_LIBRARIES:
            path = os.path.join(torch, "lib", name)
            if torch and os.path.exists(path):
                try:
                    self._libraries.append(Elf(path))
                except ElfError:
                    self.known = False  # a damaged libtorch: nothing may be called missing

    def __enter__(self) -> _Exports:
        return self

    def __exit__(self, *unused: object) -> None:
        for library in self._libraries:
            library.close()

    def missing(self, names: list[str], own: list[Elf]) -> list[str]:
        """Return those of `names` that neither torch nor the libraries of `own` define."""
        if not self.known:
            return []
        return sorted(
            name for name in names if not any(_defines(library, name) for library in (*self._libraries, *own))
        )


def _defines(library: Elf, name: str) -> bool:
    """Say whether `library` exports `name`; where it cannot be told, yes, so that no alarm is raised."""
    try:
        return library.defines(name)
    except ElfError:
        return True


def _describe(
    distribution: str, path: str, site_dirs: list[str], libraries: Libraries, exports: _Exports
) -> dict[str, object]:
    shown = next((path[len(site) + 1 :] for site in site_dirs if path.startswith(site + os.sep)), path)
    record: dict[str, object] = {
        "path": shown,
        "distribution": distribution,
        "module": _module(shown),
        "size_bytes": 0,
        "problem": _foreign(shown),
    }
    try:
        record["size_bytes"] = os.path.getsize(path)
        with Elf(path) as elf:
            _fill(record, elf, os.path.dirname(os.path.realpath(path)), libraries, exports)
    except (ElfError, OSError) as error:
        record["problem"] = record["problem"] or (str(error) if isinstance(error, ElfError) else "cannot be read")
    return record


def _fill(record: dict[str, object], elf: Elf, origin: str, libraries: Libraries, exports: _Exports) -> None:
    needed = elf.needed()
    search_path = elf.search_path()
    places = {name: libraries.find(name, search_path, origin) for name in needed}
    record["machine"] = elf.machine
    record["needed"] = needed
    record["unresolved"] = [name for name in needed if not places[name] and not name.startswith("ld-")]
    record["glibc_required"] = elf.glibc_required()
    if record["distribution"] == "torch":
        return  # its own symbols are its own; its thousands of fat binaries cost more than the rest together
    names = [name for name in elf.undefined() if _TORCH_NAME.match(name)]
    own = _own_libraries(places)
    try:
        record["torch_symbols"] = len(names)
        record["missing_symbols"] = exports.missing(names, own)[:MOST_SYMBOLS]
    finally:
        for library in own:
            library.close()
    record["sass"], record["ptx"] = fatbin.architectures(elf)


def _own_libraries(places: dict[str, str]) -> list[Elf]:
    """Return the needed libraries that are neither torch's nor the system's: they too may define what is asked."""
    opened = []
    for name, path in places.items():
        if path and path != "system" and name not in TORCH_LIBRARIES:
            try:
                opened.append(Elf(path))
            except ElfError:
                continue
    return opened


def _module(path: str) -> str:
    """Return the import name of an extension, "" for a plain library."""
    name = os.path.basename(path)
    if not name.endswith(".so") or (name.startswith("lib") and not _TAG.search(name)):
        return ""
    return path[: len(path) - len(name)].replace(os.sep, ".") + name.split(".")[0]


def _foreign(path: str) -> str:
    """Return what is wrong where the file's tag names another Python than this one, else ""."""
    tag = _TAG.search(os.path.basename(path))
    mine = sys.implementation.cache_tag or ""
    if tag is None or tag.group(1) == "abi3" or not mine:
        return ""
    theirs = tag.group(1)
    # The cache tag of a free-threaded build lacks the "t" that its extensions carry.
    return "" if theirs.rstrip("t") == mine.rstrip("t") else "built for %s, this is %s" % (theirs, mine)
