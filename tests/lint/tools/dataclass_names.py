"""What the tables of names share: the fields of dataclasses as HfArgumentParser makes options of them, by syntax tree.

How a type becomes an option: transformers 5.23.0 hf_argparser.py, `_parse_dataclass_field`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from tests.wheels import Wheel

NAMES = Path(__file__).parents[3] / "attncheck" / "lint" / "names"
COLUMNS = ["first release", "last release", "kind", "default", "choices"]
REQUIRED = ("transformers", "accelerate", "torch", "trl", "peft", "flash-attn", "liger-kernel", "deepspeed")
Row = list[Any]  # kind, default, choices where there are any


def wheels(directory: Path, name: str) -> dict[str, Wheel]:
    """Return the wheels of one distribution in a directory, by version, oldest first."""
    found = {path.name.split("-")[1]: Wheel(path) for path in directory.glob(f"{name}-*.whl")}
    return {version: found[version] for version in sorted(found, key=Version)}


class Package:
    """The classes of one wheel by name; of two with one name the one nearest to who asks."""

    def __init__(self, wheel: Wheel, *folders: str) -> None:
        self.classes: dict[str, dict[str, ast.ClassDef]] = {}
        for file in sorted(wheel.names):
            if file.endswith(".py") and file.startswith(folders):
                for node in ast.parse(wheel.read(file)).body:
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, {})[file] = node

    def find(self, name: str, near: str = "") -> ast.ClassDef | None:
        """Return the class called `name`, that of the file `near` first."""
        found = self.classes.get(name, {})
        first = sorted(found, key=lambda file: (file != near, "utils" not in file, "/trainer/" not in file))
        return found[first[0]] if found else None

    def fields(self, name: str, near: str = "") -> dict[str, Row]:
        """Return the options of a dataclass with those of its bases in the same wheel."""
        node, found = self.find(name, near), {}
        for base in reversed(node.bases if node else []):
            if ast.unparse(base) != name:
                found.update(self.fields(ast.unparse(base), near))
        for statement in node.body if node else []:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                row = self._row(statement)
                if row is not None and not statement.target.id.startswith("_"):
                    found[statement.target.id] = row
        return found

    def _row(self, statement: ast.AnnAssign) -> Row | None:
        words = {}
        if isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func).endswith("field"):
            words = {word.arg: word.value for word in statement.value.keywords}
            given = words.get("default")
        else:
            given = statement.value
        hidden = isinstance(words.get("init"), ast.Constant) and words["init"].value is False  # type: ignore[attr-defined]
        if hidden or "ClassVar" in ast.unparse(statement.annotation):
            return None
        default = literal(given)
        kind, choices = self._kind(statement.annotation, default)
        metadata = words.get("metadata")
        if isinstance(metadata, ast.Dict):
            given = dict(zip((literal(key) for key in metadata.keys), metadata.values)).get("choices")
            choices = literal(given) or choices
        return [kind, default, choices] if choices else [kind, default]

    def _kind(self, annotation: ast.expr, default: Any) -> tuple[str, list[Any]]:
        members = list(_members(annotation))
        texts = [ast.unparse(each) for each in members]
        if set(texts) <= {"bool", "None"}:
            return ("bool?" if "None" in texts and default is None else "bool"), []
        chosen = members[0]
        if len(members) > 1 and "None" not in texts:
            chosen = members[0] if texts[1] == "str" else members[1]
        elif len(members) > 1 and "bool" not in texts:
            chosen = members[0] if texts[1] == "None" else members[1]
        text = ast.unparse(chosen)
        if text.startswith("Literal["):
            return "str", list(_constants(chosen))
        enumeration = self.find(text)
        if enumeration is not None and any("Enum" in ast.unparse(base) for base in enumeration.bases):
            values = [literal(each.value) for each in enumeration.body if isinstance(each, ast.Assign)]
            return "str", values
        if text.lower().startswith("list"):
            return "list", []
        return (text if text in ("int", "float") else "dict" if text.lower().startswith("dict") else "str"), []


def _members(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a union in order: `Optional[X]` is X and None."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from _members(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.BinOp):
        yield from _members(annotation.left)
        yield from _members(annotation.right)
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("Union", "Optional"):
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        for part in parts:
            yield from _members(part)
        if ast.unparse(annotation.value) == "Optional":
            yield ast.Constant(None)
    else:
        yield annotation


def _constants(node: ast.expr) -> Iterator[Any]:
    inner = node.slice if isinstance(node, ast.Subscript) else node
    yield from (literal(each) for each in (inner.elts if isinstance(inner, ast.Tuple) else [inner]))


def literal(node: ast.expr | None) -> Any:
    """Return a constant's value, the small letters of an enumeration's member, None for all else."""
    try:
        value = ast.literal_eval(node) if node is not None else None
        return list(value) if isinstance(value, (tuple, set)) else value
    except ValueError:
        return node.attr.lower() if isinstance(node, ast.Attribute) else None


def requires(wheel: Wheel) -> dict[str, str]:
    """Return what a wheel requires of `REQUIRED` without any extra, for a new Python on Linux."""
    environment = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux", "extra": ""}
    found = {}
    for line in wheel.requires():
        requirement = Requirement(line)
        if requirement.name in REQUIRED and (requirement.marker is None or requirement.marker.evaluate(environment)):
            found[requirement.name] = str(requirement.specifier)
    return found


def extend(ranges: list[list[Any]], position: int, versions: list[str], row: list[Any]) -> None:
    """Lengthen the last range of releases by one, or begin a new one."""
    version = versions[position]
    if ranges and position and ranges[-1][1] == versions[position - 1] and ranges[-1][2:] == row:
        ranges[-1][1] = version
    else:
        ranges.append([version, version, *row])


def write(name: str, source: str, versions: list[str], tables: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
    """Write a table with one name a line, so that a change can be read in a diff."""
    out = [f' "source": {json.dumps(source)}', f' "columns": {json.dumps(COLUMNS)}']
    out.append(f' "versions": {json.dumps(versions)}')
    for key, value in more.items():
        out.append(f' "{key}": {{\n' + _lines(value, "  ") + "\n }")
    classes = [f'  "{each}": {{\n' + _lines(rows, "   ") + "\n  }" for each, rows in sorted(tables.items())]
    out.append(' "classes": {\n' + ",\n".join(classes) + "\n }")
    (NAMES / f"{name}.json").write_text("{\n" + ",\n".join(out) + "\n}\n", encoding="utf-8")


def _lines(rows: Mapping[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(rows.items()))
