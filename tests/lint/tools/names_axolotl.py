"""Builds attncheck/lint/names/axolotl.json from the wheels and sdists of axolotl, releases 0.8.1 and newer.

    pip download --no-deps axolotl==VERSION …        (releases up to 0.16.1 are sdists)
    python -m tests.lint.tools.names_axolotl DIRECTORY

The fields are those of `AxolotlInputConfig` (utils/schemas/config.py) and, apart, of each plugin's `args.py`: a
plugin's fields are known only where `plugins` names it (integrations/config.py, `merge_input_args`).
"""

from __future__ import annotations

import ast
import email
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from tests.lint.tools.class_fields import Package, ranges, read

TARGET = Path(__file__).parents[3] / "attncheck" / "lint" / "names" / "axolotl.json"
WANTED = ("transformers", "torch", "flash-attn", "ring-flash-attn", "trl", "liger-kernel", "accelerate", "deepspeed")
COLUMNS = ["first release", "last release", "kind", "default"]


def kind(annotation: str) -> str:
    """Return "bool", "int", "float", "str", "list", "dict", "any", the choices of a literal, or the class's name."""
    text = re.sub(r"Annotated\[(.*?),.*", r"\1", annotation.replace("\n", ""))
    parts = [
        part for part in re.split(r"\s*\|\s*", re.sub(r"^(Optional|Union)\[(.*)\]$", r"\2", text)) if part != "None"
    ]
    if "Literal[" in text:
        return "|".join(["bool"] * ("bool" in parts) + [str(each) for each in choices(annotation)])
    plain = [re.split(r"\[", part)[0].lower() for part in parts]
    return "|".join(dict.fromkeys(plain)) if len(plain) < 3 else "any"


def choices(annotation: str) -> Iterator[Any]:
    """Yield the values of the literals in an annotation."""
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            yield from (each.value for each in inner if isinstance(each, ast.Constant))


def base(package: Package) -> dict[str, list[Any]]:
    """Return the fields of the configuration."""
    rows = package.fields("axolotl.utils.schemas.config", "AxolotlInputConfig")
    return {name: [kind(annotation), default] for name, (annotation, default) in rows.items()}


def plugins(package: Package) -> Iterator[tuple[str, list[Any]]]:
    """Yield "folder:field" of every integration, and its kind and default."""
    for module in sorted(package.texts):
        found = re.fullmatch(r"axolotl\.integrations\.([\w.]+)\.args", module)
        for node in ast.walk(package.tree(module)) if found else ():
            if found and isinstance(node, ast.ClassDef) and any("BaseModel" in ast.unparse(b) for b in node.bases):
                for name, (annotation, default) in package.fields(module, node.name).items():
                    yield f"{found[1]}:{name}", [kind(annotation), default]


def requires(metadata: str, wanted: Iterable[str]) -> dict[str, list[Any]]:
    """Return name -> [what METADATA requires of it]; an extra's requirement where it is the only one."""
    found: dict[str, list[Any]] = {}
    for text in email.message_from_string(metadata).get_all("Requires-Dist") or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extra = "extra" in str(requirement.marker)
        if name in wanted and (name not in found or not extra):
            found[name] = [str(requirement.specifier)]
    return found


def dump(target: Path, head: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a table with one name a line, so that a change can be read in a diff."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in tables.items():
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in rows.items())
        lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def releases(directory: Path, pattern: str) -> dict[str, Path]:
    """Return the archives of a directory by version, oldest first."""
    found = {match[1]: path for path in directory.iterdir() if (match := re.match(pattern, path.name))}
    return {version: found[version] for version in sorted(found, key=Version)}


def main(directory: Path) -> None:
    """Write the table."""
    archives = releases(directory, r"axolotl-([\d.]+(?:\.post\d+)?)(?:-py3-none-any\.whl|\.tar\.gz)$")
    names, parts, needs = {}, {}, {}
    for version, archive in archives.items():
        package = read(archive, "axolotl")
        names[version], parts[version] = base(package), dict(plugins(package))
        # setup.py of the sdists writes the torch that it finds: theirs says nothing
        wanted = WANTED if archive.suffix == ".whl" else tuple(name for name in WANTED if name != "torch")
        needs[version] = requires(package.metadata, wanted)
        assert len(names[version]) > 250 and {"base_model", "sample_packing"} <= set(names[version]), version
    versions = list(archives)
    source = f"the wheels and sdists of axolotl {versions[0]} to {versions[-1]}: utils/schemas, integrations, METADATA"
    head = {"source": source, "columns": COLUMNS, "versions": versions}
    tables = {"requires": needs, "names": names, "plugins": parts}
    dump(TARGET, head, {key: ranges(versions, rows) for key, rows in tables.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
