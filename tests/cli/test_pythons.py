"""Every command takes and answers the same on every Python, with the oldest and the newest dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import find_python
from tests.pythons.calls import CALLS, Call, find_problems
from tests.pythons.environments import (
    DEPENDENCIES,
    Dependencies,
    build_wheel,
    list_versions,
    make_environment,
    pin_oldest,
    read_project,
)
from tests.pythons.interpreters import VARIABLE, find_interpreter, list_candidates
from tests.pythons.matrix import check_environment, compare_commands, read_commands, read_reference

PROGRAMS = Path(sys.executable).parent
# What `typing.get_type_hints` did to parameters before Python 3.11.
WRAP_NONE_DEFAULTS = """
import typing
from attncheck.cli import options
read = options._read_parameters
def wrap(each):
    return each.replace(annotation=typing.Optional[each.annotation]) if each.default is None else each
options._read_parameters = lambda function: [wrap(each) for each in read(function)]
"""


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """Return what the commands take in the environment of the tests."""
    return read_commands(PROGRAMS)


@pytest.mark.nightly
@pytest.mark.parametrize("dependencies", DEPENDENCIES)
@pytest.mark.parametrize("version", list_versions())
def test_every_command_works(version: str, dependencies: Dependencies, tmp_path: Path) -> None:
    interpreter = find_python(version)
    programs = make_environment(tmp_path / "environment", interpreter, build_wheel(tmp_path), dependencies)
    (tmp_path / "work").mkdir()
    problems = check_environment(programs, tmp_path / "work", read_reference())
    assert {name: lines for name, lines in problems.items() if lines} == {}


def test_commands_that_lose_what_defaults_to_none_are_found(expected: dict[str, Any]) -> None:
    assert not any(compare_commands(expected, expected).values())
    problems = compare_commands(read_commands(PROGRAMS, WRAP_NONE_DEFAULTS), expected)
    with_none = {
        name
        for name, command in expected.items()
        if any(each["left out"] is None and not each["required"] for each in command["parameters"].values())
    }
    assert {name for name, lines in problems.items() if lines} == with_none
    assert {"lint", "doctor", "gate", "init", "report"} <= with_none


@pytest.mark.parametrize(
    "before",
    [
        "raise SystemExit(1)",
        "import attncheck.cli.app as a; a.CommandGroup.list_commands = lambda *args: []",
    ],
)
def test_a_command_line_that_cannot_be_read_is_wrong_in_every_command(expected: dict[str, Any], before: str) -> None:
    problems = compare_commands(read_commands(PROGRAMS, before), expected)
    assert all(problems.values()) and set(problems) == set(expected)


@pytest.mark.parametrize(
    ("code", "stdout", "stderr"),
    [
        (0, "x", ""),
        (1, "another", ""),
        (1, "x", "Traceback (most recent call last):\n"),
        (1, "x", "/e/site-packages/attncheck/core/facts.py:3: DeprecationWarning: old\n"),
        (1, "x", "<string>:7: SyntaxWarning: invalid escape sequence\n"),
    ],
)
def test_a_call_that_goes_wrong_is_found(code: int, stdout: str, stderr: str) -> None:
    done = subprocess.CompletedProcess(["attncheck"], code, stdout, stderr)
    assert len(find_problems(Call("doctor", 1, True), done, "x")) == 1


def test_what_other_packages_warn_of_is_theirs() -> None:
    stderr = (
        "/e/site-packages/typer/__init__.py:24: DeprecationWarning: 'click.utils.get_binary_stream' is deprecated\n"
    )
    done = subprocess.CompletedProcess(["attncheck"], 1, "x", stderr)
    assert find_problems(Call("doctor", 1, True), done, "x") == []


def test_every_command_is_called(expected: dict[str, Any]) -> None:
    assert {call.argv[0] for call in CALLS if not call.line.startswith("-")} == set(expected)


def test_every_dependency_has_an_oldest_release() -> None:
    requirements = read_project()["dependencies"]
    assert len(pin_oldest(requirements)) == len(requirements)
    assert pin_oldest(["a>=1.2", "b<4,>=2; python_version < '3.11'"]) == {
        "a": "a==1.2",
        "b": 'b==2; python_version < "3.11"',
    }


def test_every_python_from_the_oldest_on_is_named() -> None:
    oldest = int(read_project()["requires-python"].removeprefix(">=3."))
    assert list_versions() == [f"3.{minor}" for minor in range(oldest, oldest + len(list_versions()))]


def test_interpreters_that_are_named_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setenv(VARIABLE, f"/no/such/python:{sys.executable}")
    assert find_interpreter(version) == sys.executable
    assert find_interpreter("3.1") is None
    monkeypatch.delenv(VARIABLE)
    assert sys.executable not in list_candidates("3.1")
