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
from functools import cache, cached_property
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

    def find_file(self, module: str) -> str | None:
        """Return the file that holds `module`, or None."""
        stem = module.replace(".", "/")
        return next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in self.names), None)

    def parse_module(self, module: str) -> ast.Module | None:
        """Return the syntax tree of `module`, or None if the wheel has no such module."""
        name = self.find_file(module)
        return ast.parse(self.read(name)) if name else None

    def requires(self) -> tuple[str, ...]:
        """Return its Requires-Dist."""
        name = next(name for name in self.names if name.endswith(".dist-info/METADATA"))
        return tuple(email.message_from_string(self.read(name)).get_all("Requires-Dist") or ())


@cache
def fetch_wheel(name: str, version: str) -> Wheel:
    """Return the wheel `name`==`version`, downloaded once and kept in the cache."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    CACHE.mkdir(parents=True, exist_ok=True)
    paths = sorted(CACHE.glob(pattern))
    if not paths:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, f"{name}=={version}", "--dest", str(CACHE)], check=True, timeout=600)
        paths = sorted(CACHE.glob(pattern))
    return Wheel(paths[0])


def defines_name(wheel: Wheel, module: str, name: str) -> bool:
    """Return whether `module` binds `name` at its top level, in whatever branch, or has it as a submodule."""
    names = _names_of_module(wheel, module)
    return names is not None and (name in names or wheel.find_file(f"{module}.{name}") is not None)


@cache
def _names_of_module(wheel: Wheel, module: str) -> frozenset[str] | None:
    tree = wheel.parse_module(module)
    return frozenset(_bound_names(tree.body)) if tree is not None else None


def _bound_names(body: list[ast.stmt]) -> set[str]:
    bound: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.If, ast.With)):
            bound |= _bound_names(node.body) | _bound_names(getattr(node, "orelse", []))
        elif isinstance(node, ast.Try):
            bound |= _bound_names(
                [*node.body, *node.orelse, *(part for handler in node.handlers for part in handler.body)]
            )
    return bound


def find_missing_import(reader: Wheel, module: str, other: Wheel, package: str, provided: frozenset[str]) -> str | None:
    """Return the first "module:name" of `package` that importing `module` of `reader` needs and `other` lacks.

    `other` is the wheel of `package`; `provided` are names that something sets there beforehand (a shim). The modules
    that `reader` imports from itself are followed; a failing `try` goes on with its handler.
    """
    return _ImportCheck(reader, other, package, provided).check_module(module)


class _ImportCheck:
    def __init__(self, reader: Wheel, other: Wheel, package: str, provided: frozenset[str]) -> None:
        self.reader, self.other, self.package, self.provided = reader, other, package, provided
        self.visited: set[str] = set()

    def check_module(self, name: str) -> str | None:
        tree = None if name in self.visited else self.reader.parse_module(name)
        self.visited.add(name)
        if tree is None:
            return None
        parent_package = (
            name if (self.reader.find_file(name) or "").endswith("__init__.py") else name.rpartition(".")[0]
        )
        return self.check_statements(tree.body, parent_package)

    def check_statements(self, body: list[ast.stmt], parent_package: str) -> str | None:
        for node in body:
            missing = self.check_statement(node, parent_package)
            if missing:
                return missing
        return None

    def check_statement(self, node: ast.stmt, parent_package: str) -> str | None:
        if isinstance(node, ast.Try):
            failed = self.check_statements(node.body, parent_package)
            return self.check_statements(node.handlers[0].body, parent_package) if failed and node.handlers else failed
        if isinstance(node, ast.Import):
            return next((alias.name for alias in node.names if self.lacks_module(alias.name)), None)
        if isinstance(node, ast.ImportFrom):
            return self.check_import_from(node, parent_package)
        return None

    def lacks_module(self, name: str) -> bool:
        return name.split(".")[0] == self.package and self.other.find_file(name) is None

    def check_import_from(self, node: ast.ImportFrom, parent_package: str) -> str | None:
        if node.level:
            parts = parent_package.split(".")
            base = parts[: len(parts) - node.level + 1]
            return self.check_module(".".join([*base, *(node.module or "").split(".")]).rstrip("."))
        source = node.module or ""
        if source.split(".")[0] != self.package:
            return None
        if self.lacks_module(source):
            return source
        for alias in node.names:
            qualified_name = f"{source}:{alias.name}"
            if qualified_name not in self.provided and not defines_name(self.other, source, alias.name):
                return qualified_name
        return None


@cache
def parameter_counts(wheel: Wheel, module: str, name: str) -> tuple[int, ...]:
    """Return how many parameters each function called `name` (or `name`_vN) in `module` takes, as inspect counts."""
    tree = wheel.parse_module(module)
    if tree is None:
        return ()
    pattern = re.compile(re.escape(name) + r"(_v\d+)?")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and pattern.fullmatch(node.name)]
    return tuple(sorted({_count_parameters(function.args) for function in functions}))


def _count_parameters(arguments: ast.arguments) -> int:
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def dependency_table(wheel: Wheel) -> dict[str, str]:
    """Return transformers' own table of dependencies: name -> requirement."""
    tree = wheel.parse_module("transformers.dependency_versions_table")
    assert tree is not None
    for node in tree.body:
        if isinstance(node, ast.Assign):
            table = ast.literal_eval(node.value)
            return {str(key): str(value) for key, value in table.items()}
    return {}
