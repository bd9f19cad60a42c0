"""Builds attncheck/lint/names/axolotl.json from the wheels and sdists of axolotl, releases 0.8.1 and newer.

    pip download --no-deps axolotl==VERSION …        (releases up to 0.16.1 are sdists)
    python -m tools.names.axolotl DIRECTORY

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

from tools.names.class_fields import Package, build_ranges, read_package

TARGET = Path(__file__).parents[2] / "attncheck" / "lint" / "names" / "axolotl.json"
PACKAGES = ("transformers", "torch", "flash-attn", "ring-flash-attn", "trl", "liger-kernel", "accelerate", "deepspeed")
COLUMNS = ["first release", "last release", "kind", "default"]


def annotation_kind(annotation: str) -> str:
    """Return "bool", "int", "float", "str", "list", "dict", "any", the choices of a literal, or the class's name."""
    text = re.sub(r"Annotated\[(.*?),.*", r"\1", annotation.replace("\n", ""))
    parts = [
        part for part in re.split(r"\s*\|\s*", re.sub(r"^(Optional|Union)\[(.*)\]$", r"\2", text)) if part != "None"
    ]
    if "Literal[" in text:
        return "|".join(["bool"] * ("bool" in parts) + [str(choice) for choice in literal_choices(annotation)])
    kinds = [re.split(r"\[", part)[0].lower() for part in parts]
    return "|".join(dict.fromkeys(kinds)) if len(kinds) < 3 else "any"


def literal_choices(annotation: str) -> Iterator[Any]:
    """Yield the values of the literals in an annotation."""
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            yield from (element.value for element in elements if isinstance(element, ast.Constant))


def read_base_fields(package: Package) -> dict[str, list[Any]]:
    """Return the fields of the configuration."""
    rows = package.collect_fields("axolotl.utils.schemas.config", "AxolotlInputConfig")
    return {name: [annotation_kind(annotation), default] for name, (annotation, default) in rows.items()}


def plugin_fields(package: Package) -> Iterator[tuple[str, list[Any]]]:
    """Yield "folder:field" of every integration, and its kind and default."""
    for module in sorted(package.texts):
        match = re.fullmatch(r"axolotl\.integrations\.([\w.]+)\.args", module)
        for node in ast.walk(package.parse_module(module)) if match else ():
            if (
                match
                and isinstance(node, ast.ClassDef)
                and any("BaseModel" in ast.unparse(base) for base in node.bases)
            ):
                for name, (annotation, default) in package.collect_fields(module, node.name).items():
                    yield f"{match[1]}:{name}", [annotation_kind(annotation), default]


def read_requirements(metadata: str, packages: Iterable[str]) -> dict[str, list[Any]]:
    """Return name -> [what METADATA requires of it]; an extra's requirement if it is the only one."""
    specifiers: dict[str, list[Any]] = {}
    for text in email.message_from_string(metadata).get_all("Requires-Dist") or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        is_extra = "extra" in str(requirement.marker)
        if name in packages and (name not in specifiers or not is_extra):
            specifiers[name] = [str(requirement.specifier)]
    return specifiers


def write_table(target: Path, head: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a table with one name a line, so that a change can be read in a diff."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in tables.items():
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in rows.items())
        lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def list_releases(directory: Path, pattern: str) -> dict[str, Path]:
    """Return the archives of a directory by version, oldest first."""
    archives = {match[1]: path for path in directory.iterdir() if (match := re.match(pattern, path.name))}
    return {version: archives[version] for version in sorted(archives, key=Version)}


def main(directory: Path) -> None:
    """Write the table."""
    archives = list_releases(directory, r"axolotl-([\d.]+(?:\.post\d+)?)(?:-py3-none-any\.whl|\.tar\.gz)$")
    names, plugins, needs = {}, {}, {}
    for version, archive in archives.items():
        package = read_package(archive, "axolotl")
        names[version], plugins[version] = read_base_fields(package), dict(plugin_fields(package))
        # setup.py of the sdists writes the torch that it finds: theirs says nothing
        packages = PACKAGES if archive.suffix == ".whl" else tuple(name for name in PACKAGES if name != "torch")
        needs[version] = read_requirements(package.metadata, packages)
        assert len(names[version]) > 250 and {"base_model", "sample_packing"} <= set(names[version]), version
    versions = list(archives)
    source = f"the wheels and sdists of axolotl {versions[0]} to {versions[-1]}: utils/schemas, integrations, METADATA"
    head = {"source": source, "columns": COLUMNS, "versions": versions}
    tables = {"requires": needs, "names": names, "plugins": plugins}
    write_table(TARGET, head, {key: build_ranges(versions, rows) for key, rows in tables.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
