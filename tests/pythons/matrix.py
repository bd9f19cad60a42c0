"""Runs every command in one environment, and compares what each takes and answers with the reference environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.pythons import surface
from tests.pythons.calls import CALLS, Call, find_problems, lay_files, run_call
from tests.pythons.environments import ROOT

GROUP = "attncheck"  # calls that name no command are the group's own
KEEP_REPORT = Call("doctor --facts facts.json --format json", 1)
SURFACE = ROOT / "tests" / "data" / "surface.txt"


@dataclass(frozen=True)
class Reference:
    """What the commands take and answer in the environment that runs this."""

    commands: Mapping[str, Any]
    kept_report: str
    fixed_outputs: Mapping[str, str]  # of the calls that have one, by their line


@cache
def read_reference() -> Reference:
    """Run what has the same answer everywhere in the environment that runs this, whose `bin` holds attncheck."""
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_files(folder, "")
        kept_report = run_call(KEEP_REPORT, programs, folder).stdout
        (folder / "kept.json").write_text(kept_report, encoding="utf-8")
        fixed_outputs = {call.line: run_call(call, programs, folder).stdout for call in CALLS if call.is_fixed}
    return Reference(read_commands(programs), kept_report, fixed_outputs)


def check_environment(programs: Path, folder: Path, reference: Reference) -> dict[str, list[str]]:
    """Return what is wrong with each command in an environment, given by its `bin`; an empty list for nothing."""
    lay_files(folder, reference.kept_report)
    problems = {GROUP: [], **compare_commands(read_commands(programs), reference.commands)}
    for call in CALLS:
        name = call.argv[0] if call.argv[0] in problems else GROUP
        done = run_call(call, programs, folder)
        problems[name] += find_problems(call, done, reference.fixed_outputs.get(call.line))
    return problems


def read_commands(programs: Path, before: str = "") -> dict[str, Any]:
    """Return what `surface` says of the commands in an environment, nothing where it fails; `before` is run first."""
    script = f"{before}\nimport runpy; runpy.run_path({surface.__file__!r}, run_name='__main__')"
    environ = {"COLUMNS": "200", "LANG": "C.UTF-8"}
    command = [str(programs / "python"), "-I", "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    commands: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return commands


def compare_commands(commands: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return how each command that is written down differs from its words there, and from what is `expected` of it."""
    problems = {}
    for name, *words in map(str.split, SURFACE.read_text(encoding="utf-8").splitlines()):
        if name in commands and name in expected:
            differences = _compare_parameters(commands[name], expected[name])
            problems[name] = [*differences, *_compare_words(commands[name], words)]
        else:
            problems[name] = ["it cannot be read"]
    return problems


def _compare_parameters(command: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterable[str]:
    if command["help lacks"]:
        yield f"--help lacks {', '.join(command['help lacks'])}"
    parameters = command["parameters"]
    for name in sorted({*parameters, *expected["parameters"]}):
        have, want = parameters.get(name, {}), expected["parameters"].get(name, {})
        differing = [key for key in {**have, **want} if have.get(key) != want.get(key)]
        if differing:
            yield f"parameter {name}: " + "; ".join(f"{key} {have.get(key)}, not {want.get(key)}" for key in differing)


def _compare_words(command: Mapping[str, Any], written: list[str]) -> Iterable[str]:
    words = sorted(word for param in command["parameters"].values() for word in param["words"])
    if words != written:
        yield f"its words differ from {SURFACE.name}: {' '.join(sorted({*words} ^ {*written}))}"
