"""Builds attncheck/lint/names/openrlhf.json from the wheels of OpenRLHF, releases 0.5.0 and newer.

    pip download --no-deps --only-binary :all: --python-version 3.11 --platform manylinux1_x86_64 openrlhf==VERSION …
    python -m tools.names.openrlhf DIRECTORY_OF_WHEELS

For every release and every trainer the `if __name__ == "__main__"` block of `cli/train_*.py` is cut at
`parser.parse_args()` and run: its parser is requested its options, so that names made in loops are found too. The
first-line requirements of METADATA on what attention depends on are kept with the releases.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import email
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

TABLE_FILE = Path(__file__).parents[2] / "attncheck" / "lint" / "names" / "openrlhf.json"
FIRST_RELEASE = Version("0.5.0")
PACKAGES = ("transformers", "flash-attn", "deepspeed", "ray", "vllm", "torch")
TRAINER_FILE = re.compile(r"(?:.*/)?openrlhf/cli/train_(\w+)\.py")


def cut_parser_block(text: str) -> ast.Module:
    """Return the statements under `__main__` of a trainer, up to the one that parses."""
    body: list[ast.stmt] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            for inner in node.body:
                if "parse_args" in ast.dump(inner):
                    break
                body.append(inner)
    return ast.Module(body, [])


def build_parser(text: str) -> argparse.ArgumentParser:
    """Return the parser that a trainer's text builds."""
    namespace: dict[str, Any] = {"argparse": argparse, "datetime": datetime.datetime, "os": os}
    exec(compile(cut_parser_block(text), "cli", "exec"), namespace)
    parser: argparse.ArgumentParser = namespace["parser"]
    return parser


def parser_rows(text: str) -> dict[str, list[Any]]:
    """Return name -> [nargs, type, default, choices] of a trainer's options."""
    rows: dict[str, list[Any]] = {}
    for action in build_parser(text)._actions:
        if action.dest == "help":
            continue
        nargs = 1 if action.nargs is None else action.nargs
        default = action.default
        if default == float("inf"):
            default = "inf"
        if action.dest.endswith("run_name"):
            default = None  # the time of day
        choices = list(action.choices) if action.choices else None
        for name in action.option_strings:
            rows[name] = [nargs, getattr(action.type, "__name__", ""), json.loads(json.dumps(default)), choices]
    return rows


def required_packages(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return what a wheel requires of `PACKAGES`, whatever the extra it comes with."""
    name = next(member for member in archive.namelist() if member.endswith(".dist-info/METADATA"))
    lines = email.message_from_string(archive.read(name).decode()).get_all("Requires-Dist") or []
    specifiers: dict[str, str] = {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.name in PACKAGES and "latest" not in line:
            specifiers[requirement.name] = str(requirement.specifier)
    return specifiers


def main(directory: Path) -> None:
    """Write the table."""
    wheels = {Version(path.name.split("-")[1]): path for path in directory.glob("openrlhf-*.whl")}
    versions = sorted(version for version in wheels if version >= FIRST_RELEASE)
    names: dict[str, dict[str, list[list[Any]]]] = {}
    requirements: dict[str, list[list[Any]]] = {}
    for version in versions:
        with zipfile.ZipFile(wheels[version]) as archive:
            for file in sorted(archive.namelist()):
                match = TRAINER_FILE.fullmatch(file)
                if match:
                    for name, row in parser_rows(archive.read(file).decode()).items():
                        _extend_spans(names.setdefault(match[1], {}).setdefault(name, []), str(version), row, versions)
            for name, specifier in required_packages(archive).items():
                _extend_spans(requirements.setdefault(name, []), str(version), [specifier], versions)
    table = {
        "source": f"the wheels of openrlhf {versions[0]} to {versions[-1]}, cli/train_*.py and METADATA",
        "columns": ["first release", "last release", "takes", "type", "default", "choices"],
        "versions": [str(version) for version in versions],
        "trainers": names,
        "requires": requirements,
    }
    TABLE_FILE.write_text(format_table(table))


def _extend_spans(spans: list[list[Any]], version: str, row: list[Any], versions: list[Version]) -> None:
    """Lengthen the last span by one release, or begin a new one."""
    previous = versions[versions.index(Version(version)) - 1] if Version(version) != versions[0] else None
    if spans and spans[-1][1] == str(previous) and spans[-1][2:] == row:
        spans[-1][1] = version
    else:
        spans.append([version, version, *row])


def format_table(table: dict[str, Any]) -> str:
    """Return JSON with one name a line, so that a change can be read in a diff."""
    sections = [f' "{key}": {json.dumps(table[key])}' for key in ("source", "columns", "versions")]
    for key in ("requires",):
        sections.append(f' "{key}": {{\n' + _format_rows(table[key], "  ") + "\n }")
    trainers = [f'  "{name}": {{\n' + _format_rows(rows, "   ") + "\n  }" for name, rows in table["trainers"].items()]
    sections.append(' "trainers": {\n' + ",\n".join(trainers) + "\n }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _format_rows(rows: dict[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(rows.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
