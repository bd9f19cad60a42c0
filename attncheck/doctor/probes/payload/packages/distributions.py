"""Finds what is installed: every `*.dist-info` and `*.egg-info` on sys.path; the watched ones are read in full.

`importlib.metadata` could do part of this, but its imports take 27 ms and it hides half-removed packages, which matter
here.
"""

from __future__ import annotations

import os
import re

from .. import files
from ..facts import describe_error
from . import faults, integrity, metadata, ownership, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Distribution = Dict[str, Any]

_METADATA_LIMIT = 1 << 21
_EGG_TAG = re.compile(r"-py\d+(\.\d+)?(-.*)?\Z")
_EMPTY = {
    "installer": "",
    "direct_url": "",
    "editable": False,
    "requires_python": "",
    "record_sha256": "",
    "problem": "",
}
_EMPTY_LISTS = ("wheel_tags", "requires", "files_missing", "files_altered", "missing_modules")


def collect_distributions(
    site_dirs: list[str], with_requirements: bool = False
) -> tuple[list[Distribution], list[dict[str, Any]], list[str]]:
    """Return the distributions in sys.path order, the files that several claim, and the import names without an owner.

    A distribution has the fields of `core.environment.Distribution` and "_path": its metadata directory or file. With
    `with_requirements`, Requires-Dist of unwatched distributions is read too.
    """
    sites = _list_sites(site_dirs)
    installed = [distribution for site, names in sites for distribution in _read_site(site, names)]
    _mark_egg_links(sites, installed)
    if with_requirements:
        for distribution in installed:
            if not watched.is_watched(distribution["name"]):
                read_required_names(distribution)
    records = integrity.Records()
    contents = {site: frozenset(names) for site, names in sites}
    for distribution in installed:
        if watched.is_watched(distribution["name"]):
            integrity.check_files(distribution, records, contents[distribution["location"]])
            distribution["record_sha256"] = integrity.hash_record(records[distribution["_path"]])
            distribution["faults"] = faults.find_faults(distribution["name"], distribution["location"])
    clashes = ownership.find_clashes(installed, records)
    integrity.compare_contents(installed, records)
    return installed, clashes, ownership.find_shadows(list(contents.items()), installed, records)


def _list_sites(site_dirs: list[str]) -> list[tuple[str, list[str]]]:
    """Return each directory of sys.path once, with its entries; repeated entries and links are resolved."""
    sites: dict[tuple[int, int], tuple[str, list[str]]] = {}
    for site in site_dirs:
        try:
            status = os.stat(site)
            sites.setdefault((status.st_dev, status.st_ino), (site, os.listdir(site)))
        except (OSError, ValueError):
            continue
    return list(sites.values())


def _read_site(site: str, names: list[str]) -> list[Distribution]:
    is_egg = site.lower().endswith(".egg")
    installed = []
    for name in sorted(names):
        try:
            distribution = _read_entry(site, name, is_egg)
        except Exception as error:  # one damaged package must not hide the others
            distribution = _blank_record(site, name, *metadata.split_stem(os.path.splitext(name)[0]))
            distribution["problem"] = "reading it failed: " + describe_error(error)
        if distribution is not None:
            installed.append(distribution)
    installed_names = {distribution["name"] for distribution in installed}
    return installed + [
        dict(_blank_record(site, name, "~" + metadata.normalise_name(name.lstrip("~")), ""), problem=_LEFTOVER)
        for name in sorted(names)
        # pip renames what it removes to "~ame" and deletes it at the end
        if name[:1] == "~"
        and not name.endswith("-info")
        and "~" + metadata.normalise_name(name.lstrip("~")) not in installed_names
        and os.path.isdir(os.path.join(site, name))
    ]


_LEFTOVER = "left behind by an interrupted uninstall or upgrade"


def _read_entry(site: str, name: str, is_egg: bool) -> Distribution | None:
    if name[:1] == "~":
        if not name.endswith(".dist-info"):
            return None
        stem, version = metadata.split_stem(name[:-10])
        return dict(
            _blank_record(site, name, "~" + metadata.normalise_name(stem.lstrip("~")), version), problem=_LEFTOVER
        )
    if name.endswith(".dist-info"):
        return _read_distribution(site, name, *metadata.split_stem(name[:-10]), metadata_file="METADATA")
    if name.endswith(".egg-info"):
        return _read_distribution(
            site, name, *metadata.split_stem(_EGG_TAG.sub("", name[:-9])), metadata_file="PKG-INFO"
        )
    if is_egg and name == "EGG-INFO":
        stem = _EGG_TAG.sub("", os.path.basename(site)[:-4])
        return _read_distribution(site, name, *metadata.split_stem(stem), metadata_file="PKG-INFO")
    return None


def _blank_record(site: str, entry: str, name: str, version: str) -> Distribution:
    if not name.isprintable():
        name = ascii(name)[1:-1]
    distribution: Distribution = {"name": name, "version": version, "location": site, **_EMPTY}
    distribution.update((key, []) for key in _EMPTY_LISTS)
    distribution["_path"] = os.path.join(site, entry)
    return distribution


def _read_distribution(site: str, entry: str, name: str, version: str, metadata_file: str) -> Distribution:
    distribution = _blank_record(site, entry, metadata.normalise_name(name), version)
    folder = distribution["_path"]
    try:
        names = os.listdir(folder)
    except NotADirectoryError:  # a distutils egg-info is PKG-INFO itself
        names, metadata_file = [""], ""
        if entry.endswith(".dist-info"):
            distribution["problem"] = "is a file, not a directory"
    except OSError as error:
        distribution["problem"] = "cannot be read: " + describe_error(error)
        return distribution
    if metadata_file not in names:
        distribution["problem"] = f"{metadata_file} is missing" if names else "its metadata directory is empty"
    if "INSTALLER" in names:
        distribution["installer"] = _read_first_line(folder + "/INSTALLER")
    if "direct_url.json" in names:
        distribution["direct_url"], distribution["editable"] = metadata.parse_direct_url(
            files.read_content(folder + "/direct_url.json")
        )
    if watched.is_watched(distribution["name"]):
        _read_in_full(distribution, names, metadata_file)
    return distribution


def _read_in_full(distribution: Distribution, names: list[str], metadata_file: str) -> None:
    folder = distribution["_path"]
    if metadata_file in names:
        _apply_headers(distribution, os.path.join(folder, metadata_file) if metadata_file else folder)
    if "WHEEL" in names:
        distribution["wheel_tags"] = metadata.parse_wheel_tags(files.read_content(folder + "/WHEEL"))
    if not distribution["requires"] and "requires.txt" in names:
        unconditional = files.read_text(folder + "/requires.txt").partition("[")[0]
        distribution["requires"] = [line.strip()[:1000] for line in unconditional.splitlines() if line.strip()][:1000]
    if metadata_file == "METADATA" and distribution["installer"] in ("pip", "uv") and "RECORD" not in names:
        integrity.add_problem(distribution, "RECORD is missing")


def _apply_headers(distribution: Distribution, path: str) -> None:
    try:
        headers, problem = metadata.parse_headers(files.read_bytes(path, _METADATA_LIMIT))
    except (OSError, ValueError) as error:
        headers, problem = {}, "cannot be read: " + describe_error(error)
    title = os.path.basename(path) if os.path.basename(path) in ("METADATA", "PKG-INFO") else "its metadata"
    if problem:
        integrity.add_problem(
            distribution, f"{title} is {problem}" if problem.startswith("not") else f"{title} {problem}"
        )
    name = headers.get("name", [""])[0]
    if metadata.is_valid_name(name):
        distribution["name"] = metadata.normalise_name(name)
    elif "cannot" not in problem:
        integrity.add_problem(distribution, f"{title} has a malformed Name" if name else f"{title} has no Name")
    version = headers.get("version", [""])[0]
    if version:
        distribution["version"] = version[:100]
    elif "cannot" not in problem:
        integrity.add_problem(distribution, f"{title} has no Version")
    distribution["requires"] = headers.get("requires-dist", [])
    distribution["requires_python"] = headers.get("requires-python", [""])[0]


def read_required_names(distribution: Distribution) -> set[str]:
    """Return the normalised names that a distribution requires without an extra, and read its requirements if needed.

    They stay empty if they cannot be read.
    """
    if not distribution["requires"] and not watched.is_watched(distribution["name"]):
        _read_requirements(distribution)
    return metadata.list_required_names(distribution["requires"], with_extras=False)


def _read_requirements(distribution: Distribution) -> None:
    for name in ("METADATA", "PKG-INFO"):
        try:
            data = files.read_bytes(os.path.join(distribution["_path"], name), _METADATA_LIMIT)
        except (OSError, ValueError):
            continue
        headers = metadata.parse_headers(data)[0]
        distribution["requires"] = headers.get("requires-dist", [])
        distribution["requires_python"] = headers.get("requires-python", [""])[0]
        return


def _mark_egg_links(sites: list[tuple[str, list[str]]], installed: list[Distribution]) -> None:
    """Mark distributions from `setup.py develop` as editable, and record links whose target is not on sys.path."""
    for site, names in sites:
        for name in names:
            if not name.endswith(".egg-link"):
                continue
            target = os.path.normpath(_read_first_line(os.path.join(site, name)) or site)
            linked = [
                distribution
                for distribution in installed
                if os.path.normpath(distribution["location"]) == target and target != site
            ]
            for distribution in linked:
                distribution["editable"], distribution["direct_url"] = True, "file://" + target
            if not linked:
                distribution = _blank_record(site, name, metadata.normalise_name(name[:-9]), "")
                distribution.update(
                    editable=True, problem="its egg-link points to a directory that is not on sys.path: " + target
                )
                installed.append(distribution)


def _read_first_line(path: str) -> str:
    lines = files.read_text(path, 4096).splitlines()
    return lines[0].strip()[:1000] if lines else ""
