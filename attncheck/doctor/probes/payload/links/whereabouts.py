"""Finds where missing names are now in the package that had them, and which module restores them."""

from __future__ import annotations

import os
import re
from typing import Iterable

from .. import files
from .source import MAX_FILE_BYTES, ModuleFinder, SourceModule

MAX_PLACES = 3
MAX_FILES = 8000


def find_whereabouts(finder: ModuleFinder, package: str, names: set[str]) -> dict[str, list[str]]:
    """Return the modules of `package` that now define each of `names`, the most public first."""
    root = finder.find(package)
    if root is None or not root.is_package or not names:
        return {}
    top = os.path.dirname(root.path)
    pattern = re.compile(r"^(?:class|def|async def)\s+(%s)\b|^(%s)\s*=(?!=)" % (("|".join(sorted(names)),) * 2), re.M)
    places: dict[str, list[str]] = {}
    wanted = [name.encode() for name in names]
    for path in _iter_files(top):
        content = files.read_content(path, MAX_FILE_BYTES)
        if not any(name in content for name in wanted):
            continue
        for first, second in set(pattern.findall(content.decode("utf-8", "replace"))):
            places.setdefault(first or second, []).append(_module_name(package, top, path))
    return {name: sorted(modules, key=_rank)[:MAX_PLACES] for name, modules in places.items()}


def find_patcher(modules: Iterable[SourceModule], name: str) -> str:
    """Return the module that sets `name` on another module, or ""; if there is one, only an import finds the name."""
    escaped = re.escape(name)
    pattern = re.compile(r"(?<!\bself)(?<!\bcls)\.%s\s*=(?!=)|setattr\([^()]*[\"']%s[\"']" % (escaped, escaped))
    return next((m.name for m in modules if name in m.text and pattern.search(m.text)), "")


def _iter_files(top: str) -> Iterable[str]:
    count = 0
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in ("tests", "__pycache__"))
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("dummy_") and count < MAX_FILES:  # placeholders
                count += 1
                yield os.path.join(folder, name)


def _module_name(package: str, top: str, path: str) -> str:
    relative = os.path.relpath(path, top)[:-3].replace(os.sep, ".")
    name = package + "." + relative
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def _rank(module: str) -> tuple[bool, int, str]:
    return "._" in module or ".models." in module or ".deprecated" in module, module.count("."), module
