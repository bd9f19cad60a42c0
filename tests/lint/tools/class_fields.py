"""Reads the fields of dataclasses and pydantic models out of a wheel or sdist, by syntax tree: nothing is imported.

Bases are followed through the package's own imports and re-exports; a base of another package is named, not read.
"""

from __future__ import annotations

import ast
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[str, Any]  # the annotation, and the default where it is a plain value


@dataclass
class Package:
    """The Python files of one release, by dotted module."""

    texts: Mapping[str, str]
    metadata: str = ""
    packages: frozenset[str] = frozenset()
    trees: dict[str, ast.Module] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)  # bases of other packages, met on the way

    def tree(self, module: str) -> ast.Module:
        """Return the syntax tree of a module."""
        if module not in self.trees:
            self.trees[module] = ast.parse(self.texts[module])
        return self.trees[module]

    def fields(self, module: str, name: str) -> dict[str, Row]:
        """Return the fields of a class, those of its bases before its own, as dataclasses order them."""
        found = self.find(module, name)
        if found is None:
            return {}
        where, node = found
        rows: dict[str, Row] = {}
        for base in reversed(node.bases):
            rows.update(self.fields(*self.origin(where, ast.unparse(base))))
        return {**rows, **dict(own(node))}

    def find(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> tuple[str, ast.ClassDef] | None:
        """Return the module that really defines a class, and its definition; None where another package does."""
        if module not in self.texts:
            self.foreign.add(f"{module}.{name}")
            return None
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        there = self.origin(module, name)
        return self.find(*there, seen | {module}) if there[0] not in seen and there[0] != module else None

    def origin(self, module: str, name: str) -> tuple[str, str]:
        """Return where a name of a module comes from: itself, or the module that it is imported from."""
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.absolute(module, node), alias.name
        return module, name

    def absolute(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that a `from … import` names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + (module in self.packages)]
        return ".".join([*kept, *([node.module] if node.module else [])])


def own(node: ast.ClassDef) -> Iterator[tuple[str, Row]]:
    """Yield the fields that a class declares itself: name, annotation, default; an alias counts as a name."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            kind = ast.unparse(each.annotation)
            if "ClassVar" in kind or each.target.id.startswith("_"):
                continue
            row = (kind, default(each.value))
            yield each.target.id, row
            alias = keyword(each.value, "alias")
            if isinstance(alias, str):
                yield alias, row


def default(value: ast.expr | None) -> Any:
    """Return a default that is a plain value, as it is or in `field(default=…)`; None otherwise."""
    if isinstance(value, ast.Call):
        inner = keyword(value, "default")
        first = value.args[0] if value.args else None
        return inner if inner is not None or first is None else default(first)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, (str, int, float, bool)) else None


def keyword(value: ast.expr | None, name: str) -> Any:
    """Return a keyword's plain value in a call."""
    for each in value.keywords if isinstance(value, ast.Call) else ():
        if each.arg == name:
            return default(each.value)
    return None


def read(archive: Path, package: str) -> Package:
    """Return the modules of `package` in a wheel or sdist, and its METADATA."""
    texts: dict[str, str] = {}
    packages = set()
    metadata = pinned = ""
    for name, text in members(archive):
        parts = Path(name).with_suffix("").parts
        if name.endswith(("METADATA", "PKG-INFO")):
            metadata = metadata if len(metadata) > len(text) else text
        if name == "requirements.txt":
            pinned = "".join(
                f"Requires-Dist: {line}\n" for line in text.splitlines() if re.match(r"[\w-]+[=<>~!]", line)
            )
        if not name.endswith(".py") or package not in parts:
            continue
        dotted = list(parts[parts.index(package) :])
        if dotted[-1] == "__init__":
            dotted.pop()
            packages.add(".".join(dotted))
        texts.setdefault(".".join(dotted), text)
    return Package(texts, pinned + metadata, frozenset(packages))


def members(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of an archive's Python files and metadata."""
    wanted = (".py", "METADATA", "PKG-INFO", "requirements.txt")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(wanted):
                    yield name, wheel.read(name).decode("utf-8")
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            file = sdist.extractfile(member) if member.name.endswith(wanted) else None
            if file is not None and "/tests/" not in member.name:
                yield member.name.partition("/")[2], file.read().decode("utf-8")


def ranges(versions: list[str], rows: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, list[list[Any]]]:
    """Return name -> [[first release, last release, *row], …] of what each release has under each name."""
    found: dict[str, list[list[Any]]] = {}
    for index, version in enumerate(versions):
        for name, row in rows[version].items():
            known = found.setdefault(name, [])
            if known and known[-1][2:] == row and index and known[-1][1] == versions[index - 1]:
                known[-1][1] = version
            else:
                known.append([version, version, *row])
    return dict(sorted(found.items()))
