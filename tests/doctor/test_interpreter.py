"""Which interpreter is examined if --python names none: attncheck in its own environment, as pipx makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.environment import Selection
from attncheck.doctor.probes import interpreter
from attncheck.doctor.probes.interpreter import find_command_interpreter, select_interpreter
from tests.doctor import venvs
from tests.doctor.venvs import TORCH_FILES, add_attncheck, bin_path, make_venv, run_tool, write_script

STATIC = ("doctor", "--lane", "static")
LAUNCH = ("lint", "--", "torchrun", "--nproc_per_node", "2", "-m", "openrlhf.cli.train_sft", "--data.max_len", "64")


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of environments: attncheck's own, one that trains, one without anything."""
    folder = tmp_path_factory.mktemp("environments")
    for name, files in (("tool", {}), ("both", TORCH_FILES), ("train", TORCH_FILES), ("bare", {})):
        make_venv(folder / name, files)
    for name in ("tool", "both"):
        add_attncheck(folder / name)
    write_script(folder / "train" / "bin" / "torchrun", f"#!{folder}/train/bin/python", "print('it trains')")
    write_script(folder / "bare" / "bin" / "ray", f"#!{folder}/bare/bin/python", "print('a job elsewhere')")
    return folder


@pytest.fixture
def without_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one without anything of the training stack, and without an active environment."""
    monkeypatch.setattr(interpreter, "_holds_stack", lambda: False)
    for name, value in (("VIRTUAL_ENV", ""), ("CONDA_PREFIX", ""), ("PATH", "/nowhere")):
        monkeypatch.setenv(name, value)


def read_report(result: subprocess.CompletedProcess[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the codes that were found, and the host's record."""
    document = json.loads(result.stdout)
    return [finding["code"] for finding in document["findings"]], document["snapshot"]["host"]


def test_a_tools_own_environment_is_not_called_clean(homes: Path, tmp_path: Path) -> None:
    result = run_tool(homes / "tool", *STATIC, cwd=tmp_path)
    assert result.returncode == 1
    assert f"{homes}/tool/bin/python, attncheck's own" in result.stdout and "--python PATH" in result.stdout
    assert "pip install" not in result.stdout, "torch has no business in a tool's environment"
    result = run_tool(homes / "tool", *STATIC, "--fail-on", "warning", "--format", "json", cwd=tmp_path)
    codes, host = read_report(result)
    assert (result.returncode, codes, host["selection"]) == (1, ["ATN100"], {"selected_by": "own", "passed_over": []})


def test_the_active_environment_is_examined(homes: Path, tmp_path: Path) -> None:
    result = run_tool(homes / "tool", *STATIC, cwd=tmp_path, VIRTUAL_ENV=f"{homes}/train")
    assert result.returncode == 0
    assert f"at {homes}/train/bin/python · named by VIRTUAL_ENV" in result.stdout and "2.11.0" in result.stdout
    result = run_tool(
        homes / "tool", *STATIC, "--format", "json", cwd=tmp_path, CONDA_PREFIX=f"{homes}/bare", VIRTUAL_ENV="/gone"
    )
    codes, host = read_report(result)
    assert (result.returncode, codes, host["executable"]) == (1, ["ATN100"], f"{homes}/bare/bin/python")
    assert host["selection"] == {
        "selected_by": "CONDA_PREFIX",
        "passed_over": ["VIRTUAL_ENV names /gone, which has no bin/python"],
    }


def test_beside_the_stack_attncheck_examines_its_own_environment(homes: Path, tmp_path: Path) -> None:
    variables = {"VIRTUAL_ENV": f"{homes}/both", "PATH": bin_path(homes / "both")}
    result = run_tool(homes / "both", *STATIC, cwd=tmp_path, **variables)
    assert result.returncode == 0 and f"at {homes}/both/bin/python · attncheck's own\n" in result.stdout
    result = run_tool(homes / "both", *STATIC, cwd=tmp_path, VIRTUAL_ENV=f"{homes}/train")
    assert "attncheck's own · VIRTUAL_ENV names another environment: --python" in result.stdout


def test_a_launch_and_a_target_are_not_judged_by_what_the_tool_lacks(homes: Path, tmp_path: Path) -> None:
    assert "ATN100" not in run_tool(homes / "tool", *LAUNCH, cwd=tmp_path, VIRTUAL_ENV=f"{homes}/tool").stdout
    for options in (("--target", "cpu"), ("--select", "ATN2")):
        result = run_tool(homes / "tool", *STATIC, *options, cwd=tmp_path)
        assert result.returncode == 0 and "ATN100" not in result.stdout


def test_run_examines_the_environment_of_its_command(homes: Path, tmp_path: Path) -> None:
    options = ("--quiet", "--checks", "doctor", "--no-cache")
    result = run_tool(homes / "tool", "run", *options, "--", f"{homes}/train/bin/torchrun", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "it trains\n", "")
    result = run_tool(homes / "both", "run", *options, "--", f"{homes}/bare/bin/python", "-V", cwd=tmp_path)
    assert result.returncode == 1 and not result.stdout
    assert f"{homes}/bare/bin/python · the command's" in result.stderr and "ATN100" in result.stderr


def test_a_measuring_command_names_what_it_examined(homes: Path, tmp_path: Path) -> None:
    result = run_tool(homes / "tool", "backends", cwd=tmp_path, VIRTUAL_ENV=f"{homes}/bare")
    assert result.returncode == 3
    assert result.stderr.startswith(f"attncheck: {homes}/bare/bin/python, named by VIRTUAL_ENV\n")
    result = run_tool(homes / "tool", *LAUNCH, cwd=tmp_path, VIRTUAL_ENV=f"{homes}/train")
    line = result.stdout.splitlines()[1]
    assert line.startswith("python  ") and line.endswith("named by VIRTUAL_ENV")


def test_an_active_environment_that_cannot_be_examined_is_one_line(homes: Path, tmp_path: Path) -> None:
    write_script(tmp_path / "old" / "bin" / "python", "#!/bin/sh", """echo '{"too_old": "3.6"}'""")
    result = run_tool(homes / "tool", *STATIC, cwd=tmp_path, VIRTUAL_ENV=f"{tmp_path}/old")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{tmp_path}/old/bin/python, named by VIRTUAL_ENV, is Python 3.6" in result.stderr


def test_no_interpreter_of_the_working_folder_is_started(homes: Path, tmp_path: Path) -> None:
    planted = write_script(tmp_path / ".venv" / "bin" / "python", "#!/bin/sh", f"touch {tmp_path}/started")
    shim = write_script(tmp_path / "shims" / "python", "#!/bin/sh", f"touch {tmp_path}/started")
    variables = {"VIRTUAL_ENV": ".venv", "PATH": f".venv/bin:.:{shim.parent}"}
    result = run_tool(homes / "tool", *STATIC, cwd=tmp_path, **variables)
    assert result.returncode == 1 and "name it to examine it" in result.stdout
    assert planted.exists() and not (tmp_path / "started").exists()


@pytest.mark.usefixtures("without_stack")
@pytest.mark.parametrize(
    ("variables", "selected_by", "name", "passed_over"),
    [
        ({}, "own", "", 0),
        ({"VIRTUAL_ENV": "train", "CONDA_PREFIX": "bare"}, "VIRTUAL_ENV", "train", 0),
        ({"VIRTUAL_ENV": "train", "CONDA_PREFIX": "bare", "PATH": "bare train"}, "CONDA_PREFIX", "bare", 0),
        ({"VIRTUAL_ENV": "gone"}, "own", "", 1),
        ({"VIRTUAL_ENV": "gone", "PATH": "gone train"}, "PATH", "train", 1),
        ({"CONDA_PREFIX": "gone", "PATH": "bare train"}, "own", "", 2),
        ({"PATH": "train bare"}, "PATH", "train", 0),
        ({"PATH": "bare train"}, "own", "", 1),
    ],
)
def test_variables_and_path_decide(
    homes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    selected_by: str,
    name: str,
    passed_over: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, value in variables.items():
        folders = [homes / word for word in value.split()]
        monkeypatch.setenv(variable, bin_path(*folders) if variable == "PATH" else str(folders[0]))
    selected = select_interpreter(None)
    assert selected.python == (f"{homes}/{name}/bin/python" if name else None)
    assert selected.selection.selected_by == selected_by
    assert len(selected.selection.passed_over) == passed_over
    assert select_interpreter("/x/python").selection == Selection("--python")


def test_the_own_environment_by_any_name_is_the_own(monkeypatch: pytest.MonkeyPatch, without_stack: None) -> None:
    folder = Path(sys.executable).parents[1]
    monkeypatch.setenv("VIRTUAL_ENV", f"{folder}/")
    assert select_interpreter(None) == interpreter.Interpreter(None, Selection("VIRTUAL_ENV"))
    assert select_interpreter(None, [str(folder / "bin" / "python3"), "x.py"]).python is None


@pytest.mark.parametrize(
    ("lines", "is_known"),
    [
        (["#!{train}", "import x"], True),
        (["#!{train} -E -s"], True),
        (["#!/usr/bin/env python3"], True),
        (["#!/usr/bin/env -S FOO=1 python3 -u"], True),
        (["#!/bin/sh", "'''exec' {train} \"$0\" \"$@\"", "' '''"], True),
        (["#!/bin/sh", '\'\'\'exec\' "{train}" "$0" "$@"', "' '''"], True),
        (["#!{bare}"], False),  # a tool that starts its jobs elsewhere, such as ray's
        (["#!/bin/sh", "exec python3 x.py"], False),
        (["#!python3"], False),
        (["#!./python3"], False),
        (["#!/gone/python3"], False),
        (["#!"], False),
        (["\x7fELF"], False),
        ([""], False),
    ],
)
def test_a_commands_interpreter_is_read_off_its_script(
    homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], is_known: bool
) -> None:
    monkeypatch.setenv("PATH", bin_path(homes / "train"))
    words = {"train": f"{homes}/train/bin/python3", "bare": f"{homes}/bare/bin/python3"}
    script = write_script(tmp_path / "start", *(line.format(**words) for line in lines))
    assert find_command_interpreter([str(script), "x"]) == (words["train"] if is_known else None)


def test_a_command_that_is_no_script(homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join(("", "here", bin_path(homes / "bare"), "/usr/bin", "/bin")))
    assert find_command_interpreter(["python", "train.py"]) == f"{homes}/bare/bin/python"
    write_script(tmp_path / "here" / "python", "#!/bin/sh")
    for argv in (["python"], ["./here/python"], ["sh", "-c", "x"], ["no-such-program"], ["a\0b"], [""], ["ray"]):
        assert find_command_interpreter(argv) is None
    assert venvs.site_packages(homes / "bare").is_dir()
