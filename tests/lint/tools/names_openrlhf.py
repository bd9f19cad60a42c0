"""Builds attncheck/lint/names/openrlhf.json from the wheels of OpenRLHF, releases 0.5.0 and newer.

    pip download --no-deps --only-binary :all: --python-version 3.11 --platform manylinux1_x86_64 openrlhf==VERSION …
    python tests/lint/tools/names_openrlhf.py DIRECTORY_OF_WHEELS

For every release and every trainer the `if __name__ == "__main__"` block of `cli/train_*.py` is cut at
`parser.parse_args()` and run: its parser is asked for its options, so that names made in loops are found too. The
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

TARGET = Path(__file__).parents[3] / "attncheck" / "lint" / "names" / "openrlhf.json"
FIRST = Version("0.5.0")
WANTED = ("transformers", "flash-attn", "deepspeed", "ray", "vllm", "torch")
TRAINER = re.compile(r"(?:.*/)?openrlhf/cli/train_(\w+)\.py")


def block(text: str) -> ast.Module:
    """Return the statements under `__main__` of a trainer, up to the one that parses."""
    body: list[ast.stmt] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            for inner in node.body:
                if "parse_args" in ast.dump(inner):
                    break
                body.append(inner)
    return ast.Module(body, [])


def parser(text: str) -> argparse.ArgumentParser:
    """Return the parser that a trainer's text builds."""
    space: dict[str, Any] = {"argparse": argparse, "datetime": datetime.datetime, "os": os}
    exec(compile(block(text), "cli", "exec"), space)
    made: argparse.ArgumentParser = space["parser"]
    return made


def rows(text: str) -> dict[str, list[Any]]:
    """Return name -> [what it takes, type, default, choices] of a trainer's options."""
    found: dict[str, list[Any]] = {}
    for action in parser(text)._actions:
        if action.dest == "help":
            continue
        takes = 1 if action.nargs is None else action.nargs
        default = action.default
        if default == float("inf"):
            default = "inf"
        if action.dest.endswith("run_name"):
            default = None  # the time of day
        choices = list(action.choices) if action.choices else None
        for name in action.option_strings:
            found[name] = [takes, getattr(action.type, "__name__", ""), json.loads(json.dumps(default)), choices]
    return found


def requires(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return what a wheel demands of `WANTED`, whatever the extra it comes with."""
    name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    lines = email.message_from_string(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: dict[str, str] = {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.name in WANTED and "latest" not in line:
            found[requirement.name] = str(requirement.specifier)
    return found


def main(directory: Path) -> None:
    """Write the table."""
    wheels = {Version(path.name.split("-")[1]): path for path in directory.glob("openrlhf-*.whl")}
    versions = sorted(version for version in wheels if version >= FIRST)
    names: dict[str, dict[str, list[list[Any]]]] = {}
    demands: dict[str, list[list[Any]]] = {}
    for version in versions:
        with zipfile.ZipFile(wheels[version]) as archive:
            for file in sorted(archive.namelist()):
                found = TRAINER.fullmatch(file)
                if found:
                    for name, row in rows(archive.read(file).decode()).items():
                        _extend(names.setdefault(found[1], {}).setdefault(name, []), str(version), row, versions)
            for name, specifier in requires(archive).items():
                _extend(demands.setdefault(name, []), str(version), [specifier], versions)
    table = {
        "source": f"the wheels of openrlhf {versions[0]} to {versions[-1]}, cli/train_*.py and METADATA",
        "columns": ["first release", "last release", "takes", "type", "default", "choices"],
        "versions": [str(version) for version in versions],
        "trainers": names,
        "requires": demands,
    }
    TARGET.write_text(dumped(table))


def _extend(ranges: list[list[Any]], version: str, row: list[Any], versions: list[Version]) -> None:
    """Lengthen the last range by one release, or begin a new one."""
    before = versions[versions.index(Version(version)) - 1] if Version(version) != versions[0] else None
    if ranges and ranges[-1][1] == str(before) and ranges[-1][2:] == row:
        ranges[-1][1] = version
    else:
        ranges.append([version, version, *row])


def dumped(table: dict[str, Any]) -> str:
    """Return JSON with one name a line, so that a change can be read in a diff."""
    out = [f' "{key}": {json.dumps(table[key])}' for key in ("source", "columns", "versions")]
    for key in ("requires",):
        out.append(f' "{key}": {{\n' + _lines(table[key], "  ") + "\n }")
    trainers = [f'  "{name}": {{\n' + _lines(rows_, "   ") + "\n  }" for name, rows_ in table["trainers"].items()]
    out.append(' "trainers": {\n' + ",\n".join(trainers) + "\n }")
    return "{\n" + ",\n".join(out) + "\n}\n"


def _lines(rows_: dict[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(rows_.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
