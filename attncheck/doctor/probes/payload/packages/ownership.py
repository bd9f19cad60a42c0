"""Determines which distribution owns an import name, which files two of them claim, and which names have no owner.

Why it matters: flash-attn 2.8.3 and flash-attn-4 4.0.0b36 both install flash_attn/cute/*. The one installed last wins,
and removing either removes the other's files. A source checkout or a leftover directory on sys.path is imported instead
of the installed package, although the metadata looks correct.
"""

from __future__ import annotations

import os

from .. import files
from . import integrity, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Distribution = dict[str, Any]

_MAX_FILES = 100  # files listed per set of owners
_SUFFIXES = (".py", ".abi3.so", ".so", ".pyd")


def find_clashes(installed: list[Distribution], records: integrity.Records) -> list[dict[str, Any]]:
    """Return {"path", "owners"} for each file that several RECORDs in one site directory claim with different content.

    Files that are identical in every distribution, such as the empty nvidia/__init__.py, are harmless and left out.
    """
    claims: dict[tuple[str, str], dict[str, str]] = {}
    for distribution in _overlapping_distributions(installed, records):
        for path, digest, size in integrity.package_files(records[distribution["_path"]]):
            claims.setdefault((distribution["location"], path), {})[distribution["name"]] = digest or str(size)
    counts: dict[tuple[str, ...], int] = {}
    clashes = []
    for (_, path), owners in sorted(claims.items()):
        names = tuple(sorted(owners))
        if len(names) > 1 and (len(set(owners.values())) > 1 or "-1" in owners.values()):
            counts[names] = counts.get(names, 0) + 1
            if counts[names] <= _MAX_FILES:
                clashes.append({"path": path, "owners": list(names)})
    return clashes


def _overlapping_distributions(installed: list[Distribution], records: integrity.Records) -> list[Distribution]:
    """Return the distributions that share a top-level name with another one in the same site directory."""
    by_top_name: dict[tuple[str, str], list[Distribution]] = {}
    for distribution in installed:
        if (
            watched.is_watched(distribution["name"])
            and not distribution["editable"]
            and distribution["name"][:1] != "~"
        ):
            for name in integrity.top_level_names(distribution, records):
                by_top_name.setdefault((distribution["location"], name), []).append(distribution)
    shared = {
        distribution["_path"]: distribution
        for group in by_top_name.values()
        if len(group) > 1
        for distribution in group
    }
    return list(shared.values())


def find_shadows(
    sites: list[tuple[str, frozenset[str]]], installed: list[Distribution], records: integrity.Records
) -> list[str]:
    """Return "NAME at PATH" for each watched import name that Python would load from outside every distribution."""
    shadows = []
    for name, providers in watched.IMPORT_PROVIDERS.items():
        for site, entry in _resolve_import(name, sites):
            if not _is_owned(site, entry, installed, records, providers):
                path = os.path.join(site, entry)
                shadows.append(
                    f"{name} at {os.path.dirname(path)}"
                    if entry.endswith("/__init__.py")
                    else f"{name} at {path}" + ("" if "." in entry else " (no __init__.py)")
                )
    return shadows


def _resolve_import(name: str, sites: list[tuple[str, frozenset[str]]]) -> list[tuple[str, str]]:
    """Return as (directory, entry) what `import name` loads: one package or module, or all parts of a namespace."""
    parts = []
    for site, names in sites:
        folder = name in names and os.path.isdir(os.path.join(site, name))
        if folder and os.path.isfile(os.path.join(site, name, "__init__.py")):
            return [(site, name + "/__init__.py")]
        for suffix in _SUFFIXES:
            if name + suffix in names:
                return [(site, name + suffix)]
        if folder:
            parts.append((site, name))
    return parts


def _is_owned(
    site: str, entry: str, installed: list[Distribution], records: integrity.Records, providers: tuple[str, ...]
) -> bool:
    path = os.path.join(site, entry)
    same_site = [
        distribution
        for distribution in installed
        if distribution["location"] == site and distribution["name"][:1] != "~"
    ]
    likely = [distribution for distribution in same_site if distribution["name"] in providers]
    return (
        any(_claims_entry(distribution, entry, records) for distribution in likely)
        or any(_is_in_editable_source(distribution, path) for distribution in installed)
        or any(_claims_entry(distribution, entry, records) for distribution in same_site if distribution not in likely)
    )


def _claims_entry(distribution: Distribution, entry: str, records: integrity.Records) -> bool:
    """Return whether a distribution's RECORD names `entry`; without a RECORD, its top_level.txt or its name decides."""
    record = records[distribution["_path"]]
    if record:
        line_start = b"\n" + os.fsencode(entry)
        return line_start + b"," in b"\n" + record or line_start + b"/" in b"\n" + record
    top_name = entry.partition("/")[0].partition(".")[0]
    return (
        distribution["name"].replace("-", "_") == top_name
        or top_name in files.read_text(distribution["_path"] + "/top_level.txt").split()
    )


def _is_in_editable_source(distribution: Distribution, path: str) -> bool:
    """Return whether `path` is inside the source tree of an editable distribution."""
    source = distribution["direct_url"]
    if not distribution["editable"] or not source.startswith("file://"):
        return False
    from urllib.parse import unquote

    return os.path.realpath(path).startswith(os.path.realpath(unquote(source[7:])) + os.sep)
