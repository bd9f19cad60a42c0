"""Checks whether the stack's compiled extensions fit this torch, these libraries, this glibc and these GPUs."""

from __future__ import annotations

import os
import re
import sys

from . import extension_files, fatbin, runtime, torch_files
from .elf import Elf, ElfError
from .extension_files import TORCH_LIBRARIES
from .libraries import LibraryFinder

MAX_BINARIES = 60
MAX_MISSING_SYMBOLS = 200  # listed per extension

# Names that libtorch exports: those in its own namespaces, instances of std and pybind11 templates for its types
# (libtorch_python holds pybind11's caster for at::Tensor), and its C entry points. A package's own function that takes
# a tensor does not match.
_TORCH_NAME = re.compile(
    r"_Z(?:T[A-Za-z]|GV)?(?:N[KVRO]*)?(?:2at|3c10|5torch|6caffe2)"
    r"|_Z(?:T[A-Za-z]|GV)?(?:N[KVRO]*)?(?:S[tabdios]|8pybind11)\w*?N[KVRO]*(?:2at|3c10|5torch|6caffe2)"
    r"|THP[A-Z]|aoti_torch_|torch_|c10_"
)
_TAG = re.compile(r"\.(cpython-\d+t?|pypy\d+[-\w]*?|abi3)(?:-[\w-]+)?\.so$")


def collect_binaries(
    installed: list[dict[str, object]], site_dirs: list[str], problems: list[str] | None = None
) -> list[dict[str, object]]:
    """Return a record for each extension of the watched distributions and for torch's own libraries.

    Extensions beyond MAX_BINARIES are left out, and a line in `problems` reports that.
    """
    if not sys.platform.startswith("linux"):
        return []
    torch = torch_files.find_torch_folder(site_dirs)
    finder = LibraryFinder(site_dirs, torch)
    paths = extension_files.find_extensions(installed, site_dirs, torch)
    if len(paths) > MAX_BINARIES and problems is not None:
        problems.append("binaries: %d of %d were not read" % (len(paths) - MAX_BINARIES, len(paths)))
    with _TorchExports(torch) as exports:
        records = [_read_binary(name, path, site_dirs, finder, exports) for name, path in paths[:MAX_BINARIES]]
    return _drop_other_python_twins(records)


def _drop_other_python_twins(records: list[dict[str, object]]) -> list[dict[str, object]]:
    """Remove modules built for another Python if the same module exists for this one too."""
    matching = {record["module"] for record in records if not str(record["problem"]).startswith("built for ")}
    return [
        record
        for record in records
        if not str(record["problem"]).startswith("built for ") or record["module"] not in matching
    ]


class _TorchExports:
    """The symbols that torch's libraries define, looked up one at a time."""

    def __init__(self, torch: str) -> None:
        self.is_complete = bool(torch)
        self._libraries = []
        for name in TORCH_LIBRARIES:
            path = os.path.join(torch, "lib", name)
            if torch and os.path.exists(path):
                try:
                    self._libraries.append(Elf(path))
                except ElfError:
                    self.is_complete = False  # a damaged libtorch, so no symbol may be reported as missing

    def __enter__(self) -> _TorchExports:
        return self

    def __exit__(self, *unused: object) -> None:
        for library in self._libraries:
            library.close()

    def find_missing(self, names: list[str], others: list[Elf]) -> list[str]:
        """Return the symbols in `names` that neither torch nor the libraries `others` define."""
        if not self.is_complete:
            return []
        return sorted(
            name for name in names if not any(_may_define(library, name) for library in (*self._libraries, *others))
        )


def _may_define(library: Elf, name: str) -> bool:
    """Return whether `library` exports `name`; True if that cannot be read, to avoid a false alarm."""
    try:
        return library.defines_symbol(name)
    except ElfError:
        return True


def _read_binary(
    distribution: str, path: str, site_dirs: list[str], finder: LibraryFinder, exports: _TorchExports
) -> dict[str, object]:
    relative_path = next((path[len(site) + 1 :] for site in site_dirs if path.startswith(site + os.sep)), path)
    record: dict[str, object] = {
        "path": relative_path,
        "distribution": distribution,
        "module": _module_name(relative_path),
        "size_bytes": 0,
        "problem": _python_mismatch(relative_path),
    }
    try:
        record["size_bytes"] = os.path.getsize(path)
        with Elf(path) as elf:
            _fill_record(record, elf, os.path.dirname(os.path.realpath(path)), finder, exports)
    except (ElfError, OSError) as error:
        record["problem"] = record["problem"] or (str(error) if isinstance(error, ElfError) else "cannot be read")
    return record


def _fill_record(
    record: dict[str, object], elf: Elf, origin: str, finder: LibraryFinder, exports: _TorchExports
) -> None:
    needed = elf.needed_libraries()
    search_path = elf.search_path()
    resolved = {name: finder.find(name, search_path, origin) for name in needed}
    record["machine"] = elf.machine
    record["needed"] = needed
    record["unresolved"] = [name for name in needed if not resolved[name] and not name.startswith("ld-")]
    versions = elf.required_versions()
    record["glibc_required"] = versions.pop("GLIBC", "")
    record["versions_required"] = {name: versions[name] for name in runtime.NAMESPACES if name in versions}
    if record["distribution"] == "torch":
        return  # torch defines its own symbols, and reading its thousands of fat binaries is slow
    names = [name for name in elf.undefined_symbols() if _TORCH_NAME.match(name)]
    others = _open_other_libraries(resolved)
    try:
        record["torch_symbols"] = len(names)
        record["missing_symbols"] = exports.find_missing(names, others)[:MAX_MISSING_SYMBOLS]
    finally:
        for library in others:
            library.close()
    record["sass"], record["ptx"] = fatbin.read_architectures(elf)


def _open_other_libraries(resolved: dict[str, str]) -> list[Elf]:
    """Open the required libraries that are neither torch's nor the system's; they may also define the symbols."""
    opened = []
    for name, path in resolved.items():
        if path and path != "system" and name not in TORCH_LIBRARIES:
            try:
                opened.append(Elf(path))
            except ElfError:
                continue
    return opened


def _module_name(path: str) -> str:
    """Return the import name of an extension; "" for a plain library."""
    name = os.path.basename(path)
    if not name.endswith(".so") or (name.startswith("lib") and not _TAG.search(name)):
        return ""
    return path[: len(path) - len(name)].replace(os.sep, ".") + name.split(".")[0]


def _python_mismatch(path: str) -> str:
    """Return the mismatch if the file's tag names another Python than this one; otherwise ""."""
    tag = _TAG.search(os.path.basename(path))
    own_tag = sys.implementation.cache_tag or ""
    if tag is None or tag.group(1) == "abi3" or not own_tag:
        return ""
    file_tag = tag.group(1)
    # The cache tag of a free-threaded build lacks the "t" that its extensions carry.
    return "" if file_tag.rstrip("t") == own_tag.rstrip("t") else "built for %s, this is %s" % (file_tag, own_tag)
