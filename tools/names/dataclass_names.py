"""Shared by the tables of names: the fields of dataclasses as HfArgumentParser makes options of them, by syntax tree.

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

NAMES = Path(__file__).parents[2] / "attncheck" / "lint" / "names"
COLUMNS = ["first release", "last release", "kind", "default", "choices"]
REQUIRED_PACKAGES = ("transformers", "accelerate", "torch", "trl", "peft", "flash-attn", "liger-kernel", "deepspeed")
Row = list[Any]  # kind, default, choices if there are any


def list_wheels(directory: Path, name: str) -> dict[str, Wheel]:
    """Return the wheels of one distribution in a directory, by version, oldest first."""
    by_version = {path.name.split("-")[1]: Wheel(path) for path in directory.glob(f"{name}-*.whl")}
    return {version: by_version[version] for version in sorted(by_version, key=Version)}


class Package:
    """The classes of one wheel by name; of two with one name the nearest to a given file."""

    def __init__(self, wheel: Wheel, *folders: str) -> None:
        self.classes: dict[str, dict[str, ast.ClassDef]] = {}
        for file in sorted(wheel.names):
            if file.endswith(".py") and file.startswith(folders):
                for node in ast.parse(wheel.read(file)).body:
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, {})[file] = node

    def find_class(self, name: str, near: str = "") -> ast.ClassDef | None:
        """Return the class called `name`, that of the file `near` first."""
        by_file = self.classes.get(name, {})
        files = sorted(by_file, key=lambda file: (file != near, "utils" not in file, "/trainer/" not in file))
        return by_file[files[0]] if by_file else None

    def collect_options(self, name: str, near: str = "") -> dict[str, Row]:
        """Return the options of a dataclass with those of its bases in the same wheel."""
        node, options = self.find_class(name, near), {}
        for base in reversed(node.bases if node else []):
            base_name = ast.unparse(base)
            if base_name not in self.classes and base_name.startswith("_"):  # "from … import X as _X": the real one
                moved_to = [file for file in self.classes.get(base_name[1:], {}) if "/experimental/" in file]
                options.update(self.collect_options(base_name[1:], moved_to[0]) if moved_to else {})
            elif base_name != name:
                options.update(self.collect_options(base_name, near))
        for statement in node.body if node else []:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                row = self._make_row(statement)
                if row is not None and not statement.target.id.startswith("_"):
                    options[statement.target.id] = row
        return options

    def collect_arguments(self, name: str, near: str = "") -> dict[str, Row]:
        """Return the keywords of a class's constructor, "**" if it takes any, and old names that a decorator takes.

        `@deprecate_kwarg("tokenizer", …, "processing_class")` renames one (transformers 4.57.6 utils/deprecation.py).
        """
        node = self.find_class(name, near)
        functions = [item for item in node.body if isinstance(item, ast.FunctionDef)] if node else []
        for function in functions:
            if function.name == "__init__":
                parameters = [*function.args.posonlyargs, *function.args.args[1:], *function.args.kwonlyargs]
                decorators = [item for item in function.decorator_list if isinstance(item, ast.Call)]
                renamed = [item for item in decorators if ast.unparse(item.func).endswith("deprecate_kwarg")]
                names = [parameter.arg for parameter in parameters] + [read_literal(item.args[0]) for item in renamed]
                keywords = (*names, *(["**"] if function.args.kwarg else []))
                return {keyword: ["argument", None] for keyword in keywords}
        bases = [ast.unparse(base) for base in node.bases] if node else []
        return next(filter(None, (self.collect_arguments(base) for base in bases if base != name)), {})

    def _make_row(self, statement: ast.AnnAssign) -> Row | None:
        keywords = {}
        if isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func).endswith("field"):
            keywords = {word.arg: word.value for word in statement.value.keywords}
            default_node = keywords.get("default")
        else:
            default_node = statement.value
        is_hidden = isinstance(keywords.get("init"), ast.Constant) and keywords["init"].value is False  # type: ignore[attr-defined]
        if is_hidden or "ClassVar" in ast.unparse(statement.annotation):
            return None
        default = read_literal(default_node)
        kind, choices = self._option_kind(statement.annotation, default)
        metadata = keywords.get("metadata")
        if isinstance(metadata, ast.Dict):
            choices_node = dict(zip((read_literal(key) for key in metadata.keys), metadata.values)).get("choices")
            choices = read_literal(choices_node) or choices
        return [kind, default, choices] if choices else [kind, default]

    def _option_kind(self, annotation: ast.expr, default: Any) -> tuple[str, list[Any]]:
        members = list(_union_members(annotation))
        texts = [ast.unparse(member) for member in members]
        if set(texts) <= {"bool", "None"}:
            return ("bool?" if "None" in texts and default is None else "bool"), []
        option_type = members[0]
        if len(members) > 1 and "None" not in texts:
            option_type = members[0] if texts[1] == "str" else members[1]
        elif len(members) > 1 and "bool" not in texts:
            option_type = members[0] if texts[1] == "None" else members[1]
        text = ast.unparse(option_type)
        if text.startswith("Literal["):
            return "str", list(_literal_values(option_type))
        enumeration = self.find_class(text)
        if enumeration is not None and any("Enum" in ast.unparse(base) for base in enumeration.bases):
            values = [read_literal(member.value) for member in enumeration.body if isinstance(member, ast.Assign)]
            return "str", values
        if text.lower().startswith("list"):
            return "list", []
        return (text if text in ("int", "float") else "dict" if text.lower().startswith("dict") else "str"), []


def _union_members(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a union in order: `Optional[X]` is X and None."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from _union_members(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.BinOp):
        yield from _union_members(annotation.left)
        yield from _union_members(annotation.right)
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("Union", "Optional"):
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        for part in parts:
            yield from _union_members(part)
        if ast.unparse(annotation.value) == "Optional":
            yield ast.Constant(None)
    else:
        yield annotation


def _literal_values(node: ast.expr) -> Iterator[Any]:
    inner = node.slice if isinstance(node, ast.Subscript) else node
    yield from (read_literal(element) for element in (inner.elts if isinstance(inner, ast.Tuple) else [inner]))


def read_literal(node: ast.expr | None) -> Any:
    """Return a constant's value, an enumeration's member in lower case, None for all else."""
    try:
        value = ast.literal_eval(node) if node is not None else None
        return list(value) if isinstance(value, (tuple, set)) else value
    except ValueError:
        return node.attr.lower() if isinstance(node, ast.Attribute) else None


def read_requirements(wheel: Wheel) -> dict[str, str]:
    """Return what a wheel requires of `REQUIRED` without any extra, for a new Python on Linux."""
    environment = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux", "extra": ""}
    specifiers = {}
    for line in wheel.requires():
        requirement = Requirement(line)
        if requirement.name in REQUIRED_PACKAGES and (
            requirement.marker is None or requirement.marker.evaluate(environment)
        ):
            specifiers[requirement.name] = str(requirement.specifier)
    return specifiers


def extend_ranges(ranges: list[list[Any]], position: int, versions: list[str], row: list[Any]) -> None:
    """Lengthen the last range of releases by one, or begin a new one."""
    version = versions[position]
    if ranges and position and ranges[-1][1] == versions[position - 1] and ranges[-1][2:] == row:
        ranges[-1][1] = version
    else:
        ranges.append([version, version, *row])


def write_table(
    name: str, source: str, versions: list[str], tables: Mapping[str, Mapping[str, Any]], **more: Any
) -> None:
    """Write a table with one name a line, so that a change can be read in a diff."""
    parts = [f' "source": {json.dumps(source)}', f' "columns": {json.dumps(COLUMNS)}']
    parts.append(f' "versions": {json.dumps(versions)}')
    for key, value in more.items():
        parts.append(f' "{key}": {{\n' + _format_rows(value, "  ") + "\n }")
    classes = [
        f'  "{class_name}": {{\n' + _format_rows(rows, "   ") + "\n  }" for class_name, rows in sorted(tables.items())
    ]
    parts.append(' "classes": {\n' + ",\n".join(classes) + "\n }")
    (NAMES / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _format_rows(rows: Mapping[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(rows.items()))
