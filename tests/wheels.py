"""Reads released wheels without installing them: what a module defines, imports and takes, by syntax tree."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CACHE = Path(os.environ.get("ATTNCHECK_WHEELS") or Path.home() / ".cache" / "attncheck" / "wheels")


@dataclass(frozen=True)
class Wheel:
    """One downloaded wheel."""

    path: Path

    @cached_property
    def archive(self) -> zipfile.ZipFile:
        """Return the open archive."""
        return zipfile.ZipFile(self.path)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of its files."""
        return frozenset(self.archive.namelist())

    def read(self, name: str) -> str:
        """Return the text of one file."""
        return self.archive.read(name).decode("utf-8")

    def file(self, module: str) -> str | None:
        """Return the file that holds `module`, or None."""
        stem = module.replace(".", "/")
        return next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in self.names), None)

    def tree(self, module: str) -> ast.Module | None:
        """Return the syntax tree of `module`, or None where the wheel has no such module."""
        name = self.file(module)
        return ast.parse(self.read(name)) if name else None

    def requires(self) -> tuple[str, ...]:
        """Return its Requires-Dist."""
        name = next(name for name in self.names if name.endswith(".dist-info/METADATA"))
        return tuple(email.message_from_string(self.read(name)).get_all("Requires-Dist") or ())


def fetch(name: str, version: str) -> Wheel:
    """Return the wheel `name`==`version`, downloaded once and kept in the cache."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    CACHE.mkdir(parents=True, exist_ok=True)
    found = sorted(CACHE.glob(pattern))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, f"{name}=={version}", "--dest", str(CACHE)], check=True, timeout=600)
        found = sorted(CACHE.glob(pattern))
    return Wheel(found[0])


def defines(wheel: Wheel, module: str, name: str) -> bool:
    """Say whether `module` defines or imports `name` at its top level, in whatever branch, or has it as submodule."""
    tree = wheel.tree(module)
    return tree is not None and (name in _bound(tree.body) or wheel.file(f"{module}.{name}") is not None)


def _bound(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.If, ast.With)):
            found |= _bound(node.body) | _bound(getattr(node, "orelse", []))
        elif isinstance(node, ast.Try):
            found |= _bound([*node.body, *node.orelse, *(part for handler in node.handlers for part in handler.body)])
    return found


def first_missing(reader: Wheel, module: str, other: Wheel, package: str, given: frozenset[str]) -> str | None:
    """Return the first "module:name" that importing `module` of `reader` asks of `package` in vain.

    `other` is the wheel of `package`; `given` are names that something sets there beforehand (a shim). The modules
    that `reader` imports from itself are followed; a failing `try` goes on with its handler.
    """
    return _Importing(reader, other, package, given).module(module)


class _Importing:
    def __init__(self, reader: Wheel, other: Wheel, package: str, given: frozenset[str]) -> None:
        self.reader, self.other, self.package, self.given = reader, other, package, given
        self.seen: set[str] = set()

    def module(self, name: str) -> str | None:
        tree = None if name in self.seen else self.reader.tree(name)
        self.seen.add(name)
        if tree is None:
            return None
        inside = name if (self.reader.file(name) or "").endswith("__init__.py") else name.rpartition(".")[0]
        return self.body(tree.body, inside)

    def body(self, body: list[ast.stmt], inside: str) -> str | None:
        for node in body:
            missing = self.statement(node, inside)
            if missing:
                return missing
        return None

    def statement(self, node: ast.stmt, inside: str) -> str | None:
        if isinstance(node, ast.Try):
            failed = self.body(node.body, inside)
            return self.body(node.handlers[0].body, inside) if failed and node.handlers else failed
        if isinstance(node, ast.Import):
            return next((alias.name for alias in node.names if self.lacks_module(alias.name)), None)
        if isinstance(node, ast.ImportFrom):
            return self.import_from(node, inside)
        return None

    def lacks_module(self, name: str) -> bool:
        return name.split(".")[0] == self.package and self.other.file(name) is None

    def import_from(self, node: ast.ImportFrom, inside: str) -> str | None:
        if node.level:
            parts = inside.split(".")
            base = parts[: len(parts) - node.level + 1]
            return self.module(".".join([*base, *(node.module or "").split(".")]).rstrip("."))
        source = node.module or ""
        if source.split(".")[0] != self.package:
            return None
        if self.lacks_module(source):
            return source
        for alias in node.names:
            place = f"{source}:{alias.name}"
            if place not in self.given and not defines(self.other, source, alias.name):
                return place
        return None


def parameter_counts(wheel: Wheel, module: str, name: str) -> tuple[int, ...]:
    """Return how many parameters each function called `name` (or `name`_vN) in `module` takes, as inspect counts."""
    tree = wheel.tree(module)
    if tree is None:
        return ()
    wanted = re.compile(re.escape(name) + r"(_v\d+)?")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and wanted.fullmatch(node.name)]
    return tuple(sorted({_count(function.args) for function in functions}))


def _count(arguments: ast.arguments) -> int:
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def dependency_table(wheel: Wheel) -> dict[str, str]:
    """Return transformers' own table of dependencies: name -> requirement."""
    tree = wheel.tree("transformers.dependency_versions_table")
    assert tree is not None
    for node in tree.body:
        if isinstance(node, ast.Assign):
            table = ast.literal_eval(node.value)
            return {str(key): str(value) for key, value in table.items()}
    return {}
