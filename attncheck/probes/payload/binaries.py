"""Reads the attention stack's compiled extensions: do they fit this torch, these libraries, this glibc, these GPUs?"""

from __future__ import annotations

import os
import re
import sys

from . import fatbin, files, torch_files
from .elf import Elf, ElfError
from .libraries import Libraries

# Distributions whose extensions decide whether attention works. torch itself is read apart: its RECORD is long.
WATCHED = (
    "flash-attn",
    "flash-attn-3",
    "ring-flash-attn",
    "liger-kernel",
    "xformers",
    "vllm",
    "sgl-kernel",
    "sglang",
    "causal-conv1d",
    "mamba-ssm",
    "apex",
    "transformer-engine",
    "transformer-engine-torch",
    "deepspeed",
    "bitsandbytes",
    "torchvision",
    "torchaudio",
    "torchao",
)
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so")
MOST_BINARIES = 60
MOST_SYMBOLS = 200  # of the missing: more than anyone reads
RECORD_LIMIT = 16 << 20  # bytes

_EXTENSION = re.compile(rb"^\"?([^,\"\n]+\.so(?:\.\d+)*)\"?,", re.MULTILINE)
# C++ names from torch's namespaces anywhere in the mangled name, and torch's C entry points.
_TORCH_NAME = re.compile(r"_Z\w*?(?:N2at|3c10|5torch|6caffe2)|THP[A-Z]|aoti_torch_|torch_|c10_")
_TAG = re.compile(r"\.(cpython-\d+t?|pypy\d+[-\w]*?|abi3)(?:-[\w-]+)?\.so$")


def look(found: list[dict[str, object]], site_dirs: list[str]) -> list[dict[str, object]]:
    """Return a record for each extension of the watched distributions and for torch's own libraries."""
    if not sys.platform.startswith("linux"):
        return []
    torch = torch_files.folder(site_dirs)
    libraries = Libraries(site_dirs, torch)
    paths = [(str(item["name"]), path) for item in found if item["name"] in WATCHED for path in _extensions(item)]
    if torch:
        paths += [("torch", os.path.join(torch, "lib", name)) for name in TORCH_LIBRARIES]
    with _Exports(torch) as exports:
        return [
            _describe(name, path, site_dirs, libraries, exports)
            for name, path in paths[:MOST_BINARIES]
            if os.path.exists(path)
        ]


def _extensions(item: dict[str, object]) -> list[str]:
    info = str(item["_path"])
    try:
        record = files.read(os.path.join(info, "RECORD"), RECORD_LIMIT)
    except (OSError, ValueError):
        return []
    names = dict.fromkeys(match.decode("utf-8", "replace") for match in _EXTENSION.findall(record))
    site = os.path.dirname(info)
    return [os.path.normpath(os.path.join(site, name)) for name in names]


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
        "module": "" if distribution == "torch" else _module(shown),
        "size_bytes": 0,
        "problem": "" if distribution == "torch" else _foreign(shown),
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
