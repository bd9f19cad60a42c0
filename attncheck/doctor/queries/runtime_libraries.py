"""Finds compiled files that need a newer libstdc++ or libgcc than Python loads here, and a copy that is new enough."""

import re
from typing import NamedTuple

from packaging.version import Version

from attncheck.core.snapshot import Binary, RuntimeLibrary, Snapshot

LIBRARY_OF = {"GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6", "GCC": "libgcc_s.so.1"}
# The first GCC whose libstdc++ has the version: https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html, "ABI Policy".
FIRST_GCC = {
    "3.4.26": "9.1",
    "3.4.27": "9.2",
    "3.4.28": "9.3",
    "3.4.29": "11.1",
    "3.4.30": "12.1",
    "3.4.31": "13.1",
    "3.4.32": "13.2",
    "3.4.33": "14.1",
    "3.4.34": "15.1",
}
# glibc, elf/dl-version.c (match_symbol): "version `X' not found (required by Y)"
_NOT_FOUND = re.compile(
    r"(/\S*/(?:libstdc\+\+|libgcc_s)\.so[\w.]*): version [`'](GLIBCXX|CXXABI|GCC)_([\d.]+)' not found"
    r"(?: \(required by ([^)]+)\))?"
)


class RuntimeGap(NamedTuple):
    """A version that a compiled file requires of a runtime library, and the copy that lacks it."""

    namespace: str  # "GLIBCXX"
    version: str  # "3.4.32"
    path: str  # the copy that is loaded
    required_by: str  # file name

    @property
    def library(self) -> str:
        """The library's name."""
        return LIBRARY_OF[self.namespace]

    @property
    def required(self) -> str:
        """The version in the loader's notation."""
        return f"{self.namespace}_{self.version}"


def parse_runtime_gap(message: str) -> RuntimeGap | None:
    """Return the gap that the loader's message reports; None for another message."""
    match = _NOT_FOUND.search(message)
    if match is None:
        return None
    path, namespace, version, required_by = match.groups()
    return RuntimeGap(namespace, version, path, (required_by or "").rpartition("/")[2])


def find_runtime_gap(snapshot: Snapshot, binary: Binary) -> RuntimeGap | None:
    """Return the first version that `binary` requires and the loaded copy lacks, as far as both were read."""
    for namespace, required in binary.versions_required.items():
        loaded = next(iter(copies_of(snapshot, LIBRARY_OF.get(namespace, ""))), None)
        offered = loaded.provides.get(namespace, "") if loaded else ""
        if loaded and offered and Version(required) > Version(offered):
            return RuntimeGap(namespace, required, loaded.path, binary.path.rpartition("/")[2])
    return None


def copies_of(snapshot: Snapshot, name: str) -> tuple[RuntimeLibrary, ...]:
    """Return the copies of a runtime library that were found, the loaded one first."""
    return tuple(library for library in snapshot.runtime_libraries if library.name == name)


def find_newer_copy(snapshot: Snapshot, gap: RuntimeGap) -> RuntimeLibrary | None:
    """Return a copy on this machine that has the missing version; None if there is none."""
    for library in copies_of(snapshot, gap.library):
        offered = library.provides.get(gap.namespace, "")
        if offered and Version(offered) >= Version(gap.version) and library.path != gap.path:
            return library
    return None


def is_of_the_system(gap: RuntimeGap) -> bool:
    """Return whether the loaded copy is the system's, which always satisfies the system's own compiler."""
    return gap.path.startswith(("/lib", "/usr/lib"))
