"""Finds what is installed: every `*.dist-info` and `*.egg-info` on sys.path, those that matter read in full.

`importlib.metadata` would do some of it, for 27 ms of imports, and hides what we look for: half-removed packages.
"""

from __future__ import annotations

import os
import re

from .. import files
from ..facts import failure
from . import integrity, metadata, ownership, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Distribution = Dict[str, Any]

_METADATA_LIMIT = 1 << 21
_EGG_TAG = re.compile(r"-py\d+(\.\d+)?(-.*)?\Z")
_EMPTY = {"installer": "", "direct_url": "", "editable": False, "requires_python": "", "problem": ""}
_EMPTY_LISTS = ("wheel_tags", "requires", "files_missing", "files_altered")


def look(site_dirs: list[str]) -> tuple[list[Distribution], list[dict[str, Any]], list[str]]:
    """Return the distributions in sys.path order, the files that several claim, and the import names that none owns.

    A distribution has the fields of `snapshot.Distribution` and "_path": its metadata directory or file.
    """
    places = _places(site_dirs)
    found = [item for place, names in places for item in _in_place(place, names)]
    _mark_egg_links(places, found)
    records = integrity.Records()
    contents = {place: frozenset(names) for place, names in places}
    for item in found:
        if watched.is_watched(item["name"]):
            integrity.inspect(item, records, contents[item["location"]])
    clashes = ownership.clashes(found, records)
    integrity.compare_contents(found, records)
    return found, clashes, ownership.shadows(list(contents.items()), found, records)


def _places(site_dirs: list[str]) -> list[tuple[str, list[str]]]:
    """Return each directory once, however often and under whatever links sys.path names it, with what is in it."""
    found: dict[tuple[int, int], tuple[str, list[str]]] = {}
    for place in site_dirs:
        try:
            status = os.stat(place)
            found.setdefault((status.st_dev, status.st_ino), (place, os.listdir(place)))
        except (OSError, ValueError):
            continue
    return list(found.values())


def _in_place(place: str, names: list[str]) -> list[Distribution]:
    is_egg = place.lower().endswith(".egg")
    found = []
    for name in sorted(names):
        try:
            item = _entry(place, name, is_egg)
        except Exception as error:  # whatever one damaged package holds, the others are still to be seen
            item = _blank(place, name, *metadata.split_stem(os.path.splitext(name)[0]))
            item["problem"] = "reading it failed: " + failure(error)
        if item is not None:
            found.append(item)
    whole = {item["name"] for item in found}
    return found + [
        dict(_blank(place, name, "~" + metadata.normalise(name.lstrip("~")), ""), problem=_LEFT)
        for name in sorted(names)
        # pip renames what it removes to "~ame" and deletes it at the end
        if name[:1] == "~"
        and not name.endswith("-info")
        and "~" + metadata.normalise(name.lstrip("~")) not in whole
        and os.path.isdir(os.path.join(place, name))
    ]


_LEFT = "left behind by an interrupted uninstall or upgrade"


def _entry(place: str, name: str, is_egg: bool) -> Distribution | None:
    if name[:1] == "~":
        if not name.endswith(".dist-info"):
            return None
        stem, version = metadata.split_stem(name[:-10])
        return dict(_blank(place, name, "~" + metadata.normalise(stem.lstrip("~")), version), problem=_LEFT)
    if name.endswith(".dist-info"):
        return _installed(place, name, *metadata.split_stem(name[:-10]), main="METADATA")
    if name.endswith(".egg-info"):
        return _installed(place, name, *metadata.split_stem(_EGG_TAG.sub("", name[:-9])), main="PKG-INFO")
    if is_egg and name == "EGG-INFO":
        stem = _EGG_TAG.sub("", os.path.basename(place)[:-4])
        return _installed(place, name, *metadata.split_stem(stem), main="PKG-INFO")
    return None


def _blank(place: str, entry: str, name: str, version: str) -> Distribution:
    if not name.isprintable():
        name = ascii(name)[1:-1]
    item: Distribution = {"name": name, "version": version, "location": place, **_EMPTY}
    item.update((key, []) for key in _EMPTY_LISTS)
    item["_path"] = os.path.join(place, entry)
    return item


def _installed(place: str, entry: str, name: str, version: str, main: str) -> Distribution:
    item = _blank(place, entry, metadata.normalise(name), version)
    folder = item["_path"]
    try:
        inside = os.listdir(folder)
    except NotADirectoryError:  # a distutils egg-info is PKG-INFO itself
        inside, main = [""], ""
        if entry.endswith(".dist-info"):
            item["problem"] = "is a file, not a directory"
    except OSError as error:
        item["problem"] = "cannot be read: " + failure(error)
        return item
    if main not in inside:
        item["problem"] = f"{main} is missing" if inside else "its metadata directory is empty"
    if "INSTALLER" in inside:
        item["installer"] = _line(folder + "/INSTALLER")
    if "direct_url.json" in inside:
        item["direct_url"], item["editable"] = metadata.direct_url(_bytes(folder + "/direct_url.json"))
    if watched.is_watched(item["name"]):
        _read_in_full(item, inside, main)
    return item


def _read_in_full(item: Distribution, inside: list[str], main: str) -> None:
    folder = item["_path"]
    if main in inside:
        _apply_headers(item, os.path.join(folder, main) if main else folder)
    if "WHEEL" in inside:
        item["wheel_tags"] = metadata.wheel_tags(_bytes(folder + "/WHEEL"))
    if not item["requires"] and "requires.txt" in inside:
        plain = files.text(folder + "/requires.txt").partition("[")[0]
        item["requires"] = [line.strip()[:1000] for line in plain.splitlines() if line.strip()][:1000]
    if main == "METADATA" and item["installer"] in ("pip", "uv") and "RECORD" not in inside:
        _add_problem(item, "RECORD is missing")


def _apply_headers(item: Distribution, path: str) -> None:
    try:
        headers, problem = metadata.headers(files.read(path, _METADATA_LIMIT))
    except (OSError, ValueError) as error:
        headers, problem = {}, "cannot be read: " + failure(error)
    what = os.path.basename(path) if os.path.basename(path) in ("METADATA", "PKG-INFO") else "its metadata"
    if problem:
        _add_problem(item, f"{what} is {problem}" if problem.startswith("not") else f"{what} {problem}")
    name = headers.get("name", [""])[0]
    if metadata.is_name(name):
        item["name"] = metadata.normalise(name)
    elif "cannot" not in problem:
        _add_problem(item, f"{what} has a malformed Name" if name else f"{what} has no Name")
    version = headers.get("version", [""])[0]
    if version:
        item["version"] = version[:100]
    elif "cannot" not in problem:
        _add_problem(item, f"{what} has no Version")
    item["requires"] = headers.get("requires-dist", [])
    item["requires_python"] = headers.get("requires-python", [""])[0]


def _mark_egg_links(places: list[tuple[str, list[str]]], found: list[Distribution]) -> None:
    """Mark what `setup.py develop` installed as editable, and tell of links that lead nowhere."""
    for place, names in places:
        for name in names:
            if not name.endswith(".egg-link"):
                continue
            target = os.path.normpath(_line(os.path.join(place, name)) or place)
            linked = [item for item in found if os.path.normpath(item["location"]) == target and target != place]
            for item in linked:
                item["editable"], item["direct_url"] = True, "file://" + target
            if not linked:
                item = _blank(place, name, metadata.normalise(name[:-9]), "")
                item.update(editable=True, problem="its egg-link names a directory that is not on sys.path: " + target)
                found.append(item)


def _add_problem(item: Distribution, problem: str) -> None:
    item["problem"] = item["problem"] + "; " + problem if item["problem"] else problem


def _bytes(path: str, limit: int = 1 << 16) -> bytes:
    try:
        return files.read(path, limit)
    except (OSError, ValueError):
        return b""


def _line(path: str) -> str:
    lines = files.text(path, 4096).splitlines()
    return lines[0].strip()[:1000] if lines else ""
