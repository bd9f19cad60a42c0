"""Reads lock files: pylock.toml (PEP 751) and uv.lock.

A lock file names more than one install takes (extras, groups, other platforms). A package counts as installed if the
lock file shows that an install without extras takes it; otherwise it is neither present nor missing.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.toml import parse_toml
from attncheck.core.lists import group_values
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files.collector import (
    ALL_INTERPRETERS,
    MAX_LOCK_BYTES,
    Collector,
    as_list,
    as_table,
    as_text,
    matching_interpreters,
)

# In a uv.lock the archives of each package, as uv writes them: most of its text, and not needed here.
ARCHIVES = re.compile(r"^(?:wheels = \[\n(?:    \{.*\},\n)*\]|sdist = \{.*\})\n", re.MULTILINE)


def read_pylock(path: str, collector: Collector) -> None:
    """Add the packages of a pylock.toml that an install without extras and groups takes."""
    table = parse_toml(collector.read_text(path, MAX_LOCK_BYTES), path)
    if not as_text(table.get("lock-version")):
        raise BadUsage(f"{path} is not a pylock.toml: it has no lock-version")
    collector.limit_python(as_text(table.get("requires-python")))
    for package in _packages(table, "packages", path):
        marker = as_text(package.get("marker"))
        version = as_text(package.get("version"))
        collector.add(package["name"], f"=={version}" if version else "", marker or None)


def read_uv_lock(path: str, collector: Collector) -> None:
    """Add the requirements of each project in a uv.lock, without extras and groups."""
    table = parse_toml(ARCHIVES.sub("", collector.read_text(path, MAX_LOCK_BYTES)), path)
    if "version" not in table:
        raise BadUsage(f"{path} is not a uv.lock: it has no version")
    collector.limit_python(as_text(table.get("requires-python")))
    packages = _packages(table, "package", path)
    by_name = group_values((canonical_name(package["name"]), package) for package in packages)
    own = [package for package in packages if _is_own(package)]
    at_root = [package for package in own if "." in as_table(package.get("source")).values()]
    own = at_root or own  # uv installs a workspace's root, or all of its projects if the root is not a project
    reached: dict[tuple[str, str], frozenset[int]] = {}
    queue = [(package, "", ALL_INTERPRETERS) for package in own]
    while queue:
        package, extra, interpreters = queue.pop()
        key = (f"{package['name']} {package.get('version', '')}", extra)
        known = reached.get(key, frozenset())
        if interpreters <= known:
            continue
        reached[key] = known | interpreters
        for dependency in _dependencies(package, extra):
            where = interpreters & _interpreters_of(dependency)
            candidates = by_name.get(canonical_name(as_text(dependency.get("name"))), [])
            version = as_text(dependency.get("version"))
            chosen = [other for other in candidates if not version or other.get("version") == version]
            if where and len(chosen) == 1:
                extras = ["", *(as_text(name) for name in as_list(dependency.get("extra")))]
                queue += [(chosen[0], name, where) for name in extras]
    for package in packages:
        interpreters = reached.get((f"{package['name']} {package.get('version', '')}", ""), frozenset())
        if interpreters and not _is_own(package):
            version = as_text(package.get("version"))
            collector.add_for(package["name"], f"=={version}" if version else "", interpreters)


def _is_own(package: dict[str, Any]) -> bool:
    source = as_table(package.get("source"))
    return any(key in source for key in ("virtual", "editable"))


def _dependencies(package: dict[str, Any], extra: str) -> Iterator[dict[str, Any]]:
    listed = as_table(package.get("optional-dependencies")).get(extra) if extra else package.get("dependencies")
    yield from (as_table(dependency) for dependency in as_list(listed))


def _interpreters_of(dependency: dict[str, Any]) -> frozenset[int]:
    marker = as_text(dependency.get("marker"))
    return matching_interpreters(marker) if marker else ALL_INTERPRETERS


def _packages(table: dict[str, Any], key: str, path: str) -> list[dict[str, Any]]:
    """Return the packages of a lock file. Raises `BadUsage` if one has no name."""
    packages = [as_table(package) for package in as_list(table.get(key))]
    if not all(as_text(package.get("name")) for package in packages) or not isinstance(table.get(key, []), list):
        raise BadUsage(f"{os.path.basename(path)}: it contains a package without a name")
    return packages
