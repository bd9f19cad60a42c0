"""Links the user's own code: a model's files, or a launch's script and the neighbouring modules that it imports."""

from __future__ import annotations

import ast
import os
from typing import Any, Iterable, Iterator

from .linker import Linker
from .source import SourceModule, imported_modules

PACKAGE = "own_code"  # the package name assigned to these files
MAX_FILES = 200
LATE = "a function that imports it is called"


class OwnCodeLinker:
    """Links files against the packages of one environment, whose parsed modules serve every call."""

    def __init__(self, installed: Iterable[dict[str, Any]], site_dirs: list[str]) -> None:
        versions = {str(d["name"]): str(d["version"]) for d in reversed(list(installed))}
        self.linker = Linker(site_dirs, versions)

    def link(self, consumer: str, paths: list[str], folders: list[str]) -> list[dict[str, Any]]:
        """Return the records of `paths` and of the files that they import from their own folder and from `folders`.

        A package in one of those folders takes precedence over the installed one, and is not judged.
        """
        own_files = list(_iter_files(paths, folders))
        modules = [module for module, _ in own_files]
        siblings = {os.path.dirname(path) for path in paths}
        hidden = [
            name for name in self.linker.providers if any(_holds(folder, name) for folder in (*siblings, *folders))
        ]
        for module in modules:
            self.linker.finder.add(module)
        self.linker.origins, self.linker.weakened = {}, {}
        records = self.linker.link_modules(modules, "", hidden)
        self.linker.complete(records, modules)
        late = {module.path for module, is_late in own_files if is_late}
        for record in records:
            record["consumer"] = consumer
            if record["path"] in late and not record["function"]:
                record["conditions"] = [*record["conditions"], LATE]
        return records


def _holds(folder: str, name: str) -> bool:
    return os.path.isdir(os.path.join(folder, name)) or os.path.isfile(os.path.join(folder, name + ".py"))


def _iter_files(paths: list[str], folders: list[str]) -> Iterator[tuple[SourceModule, bool]]:
    """Yield each file once, with whether only functions import it; files imported at the top level come first."""
    pending = [(path, False) for path in paths]
    seen: set[str] = set()
    while pending and len(seen) < MAX_FILES:
        pending.sort(key=lambda item: item[1])
        path, is_late = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        module = SourceModule(PACKAGE + "." + os.path.splitext(os.path.basename(path))[0], path, is_package=False)
        yield module, is_late
        for statement, is_inside in _iter_imports(module):
            pending += [(imported, is_late or is_inside) for imported in _imported_paths(module, statement, folders)]


def _iter_imports(module: SourceModule) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield the import statements of a module, each with whether it is in a function."""
    pending: list[tuple[Any, bool]] = [(module.tree, False)] if module.tree is not None else []
    while pending:
        node, is_inside = pending.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, is_inside
        inside = is_inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for block in ("body", "orelse", "finalbody", "handlers"):
            pending += [(inner, inside) for inner in getattr(node, block, ()) if isinstance(inner, ast.AST)]


def _imported_paths(module: SourceModule, statement: ast.Import | ast.ImportFrom, folders: list[str]) -> Iterator[str]:
    """Yield the user's own files that an import statement runs."""
    parent = os.path.dirname(module.path)
    level = getattr(statement, "level", 0)
    tops = [os.path.normpath(os.path.join(parent, *[".."] * (level - 1)))] if level else [parent, *folders]
    for name in filter(None, imported_modules("", statement)):
        stems = [os.path.join(top, *name.split(".")) for top in tops]
        candidates = (path for stem in stems for path in (os.path.join(stem, "__init__.py"), stem + ".py"))
        path = next((path for path in candidates if os.path.isfile(path)), "")
        if path:
            yield path
