"""Which distribution owns an import name, where two fight over it, and where none does.

Why it matters: flash-attn 2.8.3 and flash-attn-4 4.0.0b36 both install flash_attn/cute/*; whichever came last wins,
and removing either removes the other's files. A source checkout or a leftover directory on sys.path is imported
instead of the installed package although the metadata looks well.
"""

from __future__ import annotations

import os

from .. import files
from . import integrity, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Distribution = dict[str, Any]

_MOST = 100  # files named for one set of owners
_SUFFIXES = (".py", ".abi3.so", ".so", ".pyd")


def clashes(found: list[Distribution], records: integrity.Records) -> list[dict[str, Any]]:
    """Return {"path", "owners"} for each file that several RECORDs in one site directory claim with unlike content.

    Files that are alike in every distribution, such as the empty nvidia/__init__.py, harm nobody and are left out.
    """
    claims: dict[tuple[str, str], dict[str, str]] = {}
    for item in _rivals(found, records):
        for path, digest, size in integrity.package_files(records[item["_path"]]):
            claims.setdefault((item["location"], path), {})[item["name"]] = digest or str(size)
    counts: dict[tuple[str, ...], int] = {}
    result = []
    for (_, path), owners in sorted(claims.items()):
        names = tuple(sorted(owners))
        if len(names) > 1 and (len(set(owners.values())) > 1 or "-1" in owners.values()):
            counts[names] = counts.get(names, 0) + 1
            if counts[names] <= _MOST:
                result.append({"path": path, "owners": list(names)})
    return result


def _rivals(found: list[Distribution], records: integrity.Records) -> list[Distribution]:
    """Return the distributions that share a top-level name with another one in the same site directory."""
    holders: dict[tuple[str, str], list[Distribution]] = {}
    for item in found:
        if watched.is_watched(item["name"]) and not item["editable"] and item["name"][:1] != "~":
            for top in integrity.top_level(item, records):
                holders.setdefault((item["location"], top), []).append(item)
    shared = {item["_path"]: item for items in holders.values() if len(items) > 1 for item in items}
    return list(shared.values())


def shadows(
    places: list[tuple[str, frozenset[str]]], found: list[Distribution], records: integrity.Records
) -> list[str]:
    """Return "NAME at PATH" for each watched import name that Python would take from outside every distribution."""
    result = []
    for name, providers in watched.IMPORTS.items():
        for place, entry in _resolved(name, places):
            if not _is_owned(place, entry, found, records, providers):
                where = os.path.join(place, entry)
                result.append(
                    f"{name} at {os.path.dirname(where)}"
                    if entry.endswith("/__init__.py")
                    else f"{name} at {where}" + ("" if "." in entry else " (no __init__.py)")
                )
    return result


def _resolved(name: str, places: list[tuple[str, frozenset[str]]]) -> list[tuple[str, str]]:
    """Return what `import name` takes, as (directory, entry): one package or module, or all parts of a namespace."""
    parts = []
    for place, names in places:
        folder = name in names and os.path.isdir(os.path.join(place, name))
        if folder and os.path.isfile(os.path.join(place, name, "__init__.py")):
            return [(place, name + "/__init__.py")]
        for suffix in _SUFFIXES:
            if name + suffix in names:
                return [(place, name + suffix)]
        if folder:
            parts.append((place, name))
    return parts


def _is_owned(
    place: str, entry: str, found: list[Distribution], records: integrity.Records, providers: tuple[str, ...]
) -> bool:
    path = os.path.join(place, entry)
    here = [item for item in found if item["location"] == place and item["name"][:1] != "~"]
    likely = [item for item in here if item["name"] in providers]
    return (
        any(_claims(item, entry, records) for item in likely)
        or any(_source_of(item, path) for item in found)
        or any(_claims(item, entry, records) for item in here if item not in likely)
    )


def _claims(item: Distribution, entry: str, records: integrity.Records) -> bool:
    """Say whether a distribution's RECORD names `entry`; without a RECORD, whether its top_level.txt or name does."""
    record = records[item["_path"]]
    if record:
        wanted = b"\n" + os.fsencode(entry)
        return wanted + b"," in b"\n" + record or wanted + b"/" in b"\n" + record
    top = entry.partition("/")[0].partition(".")[0]
    return item["name"].replace("-", "_") == top or top in files.text(item["_path"] + "/top_level.txt").split()


def _source_of(item: Distribution, path: str) -> bool:
    """Say whether `path` lies inside the source tree of an editable distribution."""
    source = item["direct_url"]
    if not item["editable"] or not source.startswith("file://"):
        return False
    from urllib.parse import unquote

    return os.path.realpath(path).startswith(os.path.realpath(unquote(source[7:])) + os.sep)
