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

Row = tuple[str, Any]  # the annotation, and the default if it is a plain value


@dataclass
class Package:
    """The Python files of one release, by dotted module."""

    texts: Mapping[str, str]
    metadata: str = ""
    packages: frozenset[str] = frozenset()
    trees: dict[str, ast.Module] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)  # bases of other packages, met while collecting fields

    def parse_module(self, module: str) -> ast.Module:
        """Return the syntax tree of a module."""
        if module not in self.trees:
            self.trees[module] = ast.parse(self.texts[module])
        return self.trees[module]

    def collect_fields(self, module: str, name: str) -> dict[str, Row]:
        """Return the fields of a class, those of its bases before its own, as dataclasses order them."""
        definition = self.find_class(module, name)
        if definition is None:
            return {}
        home, node = definition
        rows: dict[str, Row] = {}
        for base in reversed(node.bases):
            rows.update(self.collect_fields(*self.find_origin(home, ast.unparse(base))))
        return {**rows, **dict(own_fields(node))}

    def find_class(
        self, module: str, name: str, visited: frozenset[str] = frozenset()
    ) -> tuple[str, ast.ClassDef] | None:
        """Return the module that really defines a class, and its definition; None if another package does."""
        if module not in self.texts:
            self.foreign.add(f"{module}.{name}")
            return None
        for node in ast.walk(self.parse_module(module)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        origin = self.find_origin(module, name)
        return (
            self.find_class(*origin, visited | {module}) if origin[0] not in visited and origin[0] != module else None
        )

    def find_origin(self, module: str, name: str) -> tuple[str, str]:
        """Return where a name of a module comes from: itself, or the module that it is imported from."""
        for node in ast.walk(self.parse_module(module)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.resolve_import(module, node), alias.name
        return module, name

    def resolve_import(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that a `from … import` names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + (module in self.packages)]
        return ".".join([*kept, *([node.module] if node.module else [])])


def own_fields(node: ast.ClassDef) -> Iterator[tuple[str, Row]]:
    """Yield the fields that a class declares itself: name, annotation, default; an alias counts as a name."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = ast.unparse(statement.annotation)
            if "ClassVar" in kind or statement.target.id.startswith("_"):
                continue
            row = (kind, read_default(statement.value))
            yield statement.target.id, row
            alias = read_keyword(statement.value, "alias")
            if isinstance(alias, str):
                yield alias, row


def read_default(value: ast.expr | None) -> Any:
    """Return a default that is a plain value, as it is or in `field(default=…)`; None otherwise."""
    if isinstance(value, ast.Call):
        keyword_default = read_keyword(value, "default")
        first = value.args[0] if value.args else None
        return keyword_default if keyword_default is not None or first is None else read_default(first)
    try:
        default = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError):
        return None
    return default if isinstance(default, (str, int, float, bool)) else None


def read_keyword(value: ast.expr | None, name: str) -> Any:
    """Return a keyword's plain value in a call."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == name:
            return read_default(keyword.value)
    return None


def read_package(archive: Path, package: str) -> Package:
    """Return the modules of `package` in a wheel or sdist, and its METADATA."""
    texts: dict[str, str] = {}
    packages = set()
    metadata = pinned = ""
    for name, text in iter_members(archive):
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


def iter_members(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of an archive's Python files and metadata."""
    suffixes = (".py", "METADATA", "PKG-INFO", "requirements.txt")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(suffixes):
                    yield name, wheel.read(name).decode("utf-8")
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            file = sdist.extractfile(member) if member.name.endswith(suffixes) else None
            if file is not None and "/tests/" not in member.name:
                yield member.name.partition("/")[2], file.read().decode("utf-8")


def build_ranges(versions: list[str], rows: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, list[list[Any]]]:
    """Return name -> [[first release, last release, *row], …] of what each release has under each name."""
    ranges: dict[str, list[list[Any]]] = {}
    for index, version in enumerate(versions):
        for name, row in rows[version].items():
            spans = ranges.setdefault(name, [])
            if spans and spans[-1][2:] == row and index and spans[-1][1] == versions[index - 1]:
                spans[-1][1] = version
            else:
                spans.append([version, version, *row])
    return dict(sorted(ranges.items()))
