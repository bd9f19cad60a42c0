"""Digests what an interpreter runs and reads at start-up, which may affect any import.

That is sys.path itself, `pyvenv.cfg`, every `.pth` file, `sitecustomize`, `usercustomize`, and the modules that these
import in turn, except the standard library's. Site: https://docs.python.org/3/library/site.html.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from .. import files

_ROOTS = ("sitecustomize", "usercustomize")
_SUFFIXES = (".py", ".pyc", ".so", ".pyd")
_IMPORT = re.compile(r"(?:^|;)[ \t]*(?:import|from)[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)", re.MULTILINE)
_MAX_MODULES = 200
_MAX_BYTES = 1 << 20  # per file; only the size of larger files counts


def digest_startup(site_dirs: list[str]) -> str:
    """Return a digest of everything that decides what `site` does in this interpreter."""
    import hashlib

    digest = hashlib.sha256(repr((site_dirs, sys.path, sys.prefix)).encode("utf-8", "surrogatepass"))
    for path in _iter_files(site_dirs):
        digest.update(os.fsencode(path) + b"\0" + _read(path) + b"\0")
    return digest.hexdigest()


def _iter_files(site_dirs: list[str]) -> Iterator[str]:
    yield from (os.path.join(folder, "pyvenv.cfg") for folder in (sys.prefix, os.path.dirname(sys.executable or "")))
    yield from (entry for entry in sys.path if os.path.isfile(entry))  # archives
    paths = [os.path.join(site, name) for site in site_dirs for name in sorted(files.list_folder(site))]
    path_files = [path for path in paths if path.endswith((".pth", "._pth"))]
    yield from path_files
    yield from _iter_modules(site_dirs, path_files)


def _iter_modules(site_dirs: list[str], path_files: list[str]) -> Iterator[str]:
    """Yield the files of modules that are imported at start-up, and of those that they import."""
    standard_library = os.path.dirname(os.__file__)
    own_dirs = [site for site in site_dirs if os.path.basename(site) != "lib-dynload" and site != standard_library]
    waiting = [name for path in path_files for name in _imported_names(path)]
    seen = {*_ROOTS}
    for name in _ROOTS:  # a Linux distribution may place one in the standard library
        waiting += [other for path in _find_module(site_dirs, name) for other in _imported_names(path)]
        yield from _find_module(site_dirs, name)
    while waiting and len(seen) < _MAX_MODULES:
        name = waiting.pop(0)
        if name not in seen:
            seen.add(name)
            for path in _find_module(own_dirs, name):
                yield path
                waiting += _imported_names(path)


def _imported_names(path: str) -> list[str]:
    """Return the modules that a file's text seems to import, with their parent packages."""
    if not path.endswith((".py", ".pth")):
        return []
    names = [name.strip() for match in _IMPORT.findall(files.read_text(path, _MAX_BYTES)) for name in match.split(",")]
    parts = [name.strip(".").split(".") for name in names]
    return [".".join(part[: index + 1]) for part in parts for index in range(len(part)) if part[0]]


def _find_module(site_dirs: list[str], name: str) -> Iterator[str]:
    """Yield the files that may be the module, in every folder of sys.path, because the effective one may change."""
    relative = name.replace(".", os.sep)
    for site in site_dirs:
        for stem in (relative, os.path.join(relative, "__init__")):
            yield from (path for suffix in _SUFFIXES if os.path.isfile(path := os.path.join(site, stem + suffix)))


def _read(path: str) -> bytes:
    try:
        return b"%d " % os.stat(path).st_size + files.read_bytes(path, _MAX_BYTES)
    except (OSError, ValueError):
        return b""
