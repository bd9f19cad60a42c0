"""No command that a launch hides in its words is run while it is cut, and none while the cut command's shell reads it.

The cut command is handed to the shell that a rehearsal hands it to, with programs that do nothing on its PATH: whatever
makes the canary was a command of the launch.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from attncheck.core.facts import Absent
from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import Source
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting
from tests.snapshots import laptop

CANARY = "touch canary"
# Each is a value of a shell in which CANARY runs when it is expanded.
FORMS = {
    "dollar": "$(touch canary)",
    "backquotes": "`touch canary`",
    "double_quoted": '"$(touch canary)"',
    "backquotes_quoted": '"`touch canary`"',
    "single_in_double": "\"'$(touch canary)'\"",
    "locale": '$"$(touch canary)"',
    "nested": "$(echo $(touch canary))",
    "dirname_of_command": "$(dirname $(touch canary))",
    "after_pwd": "$(pwd)$(touch canary)",
    "in_path": "out/$(touch canary)/x",
    "default": "${UNSET_NAME:-$(touch canary)}",
    "default_backquotes": "${UNSET_NAME:-`touch canary`}",
    "assign": "${UNSET_NAME:=$(touch canary)}",
    "alternative": "${PATH:+$(touch canary)}",
    "pattern": "${PATH/$(touch canary)/x}",
    "prefix": "${PATH#$(touch canary)}",
    "substring": "${PATH:$(touch canary)0}",
    "process_in": "<(touch canary)",
    "process_out": ">(touch canary)",
    "arithmetic": "$((1 + $(touch canary; echo 1)))",
    "arithmetic_index": "$((a[$(touch canary)]))",
    "arithmetic_old": "$[$(touch canary; echo 1)]",
    "arithmetic_that_is_none": "$((touch canary); echo 1)",
    "subshell": "$( (touch canary) )",
    "group": "$({ touch canary; })",
    "redirection": "$(<$(touch canary))",
    "escaped_twice": "\\\\$(touch canary)",
    "cd": "$(cd . && touch canary && pwd)",
    "cd_semicolon": "$(cd .;touch canary)",
    "pwd_semicolon": "$(pwd;touch canary)",
    "newline": "$(pwd\ntouch canary)",
    "nproc_argument": "$(nproc --ignore=$(touch canary))",
    "brace": "${PATH:0:$(touch canary)1}",
    "error": "${UNSET_NAME:?$(touch canary)}",
}
OPTIONS = "--model Qwen/Qwen2.5-0.5B --data data/alpaca.json --lr 2e-5"
POSITIONS = {
    "option": f"python loop.py {OPTIONS} --out {{}}",
    "own_option": f"python loop.py {OPTIONS} --out ckpt --name {{}}",
    "equals": f"python loop.py {OPTIONS} --out ckpt --name={{}}",
    "positional": f"python loop.py {OPTIONS} --out ckpt {{}}",
    "export": f"export RUN={{}}\npython loop.py {OPTIONS} --out ckpt",
    "export_used": f"export RUN={{}}\npython loop.py {OPTIONS} --out ckpt/$RUN",
    "assignment": f"RUN={{}}\npython loop.py {OPTIONS} --out ckpt --name $RUN",
    "before_command": f"RUN={{}} python loop.py {OPTIONS} --out ckpt",
    "env": f"env RUN={{}} python loop.py {OPTIONS} --out ckpt",
    "array": f'ARGS=(--name {{}})\npython loop.py {OPTIONS} --out ckpt "${{{{ARGS[@]}}}}"',
    "cd": f"cd {{}}\npython loop.py {OPTIONS} --out ckpt",
    "launcher": f"torchrun --nproc-per-node {{}} loop.py {OPTIONS} --out ckpt",
    "redirection": f"python loop.py {OPTIONS} --out ckpt > {{}}",
    "here_string": f"python loop.py {OPTIONS} --out ckpt <<< {{}}",
    "pipe": f"python loop.py {OPTIONS} --out ckpt | tee {{}}",
    "condition": f"if [ -n {{}} ]; then\npython loop.py {OPTIONS} --out ckpt\nfi",
    "for": f"for RUN in {{}}; do\npython loop.py {OPTIONS} --out ckpt --name $RUN\ndone",
    "function": f"train() {{{{\npython loop.py {OPTIONS} --out ckpt --name $1\n}}}}\ntrain {{}}",
    "continued": f"python loop.py {OPTIONS} \\\n  --out ckpt \\\n  --name {{}}",
}
# A value that is one only once it is expanded again, if no text of the launch's words is a command.
SECOND = {
    "prompt": ("'$(touch canary)'", "${X@P}"),
    "indirect": ("'a[$(touch canary)]'", "${!X}"),
    "index": ("'a[$(touch canary)]'", "$((X))"),
    "index_old": ("'a[$(touch canary)]'", "$[X]"),
    "offset": ("'a[$(touch canary)]'", "${PATH:X}"),
    "length": ("'a[$(touch canary)]'", "${PATH:0:X}"),
    "subscript": ("'a[$(touch canary)]'", "${PATH[X]}"),
    "subscript_backquotes": ("'a[`touch canary`]'", "$((X + 1))"),
    "ansi": ("$'a[$\\x28touch canary)]'", "$((X))"),
}
# Programs of which only running tells what they do, and code before the command.
PROLOGUES = {
    "command": "touch canary",
    "function": "python() { touch canary; }",
    "alias": "shopt -s expand_aliases\nalias python='touch canary; python'",
    "trap": "trap 'touch canary' EXIT DEBUG",
    "source": "source ./evil.sh",
    "dot": ". ./evil.sh",
    "eval": "eval 'touch canary'",
    "exec": "exec 3> canary",
    "here_document": "cat <<EOF\n$(touch canary)\nEOF",
    "read": "read X < <(touch canary)",
    "test": "[[ -v a[$(touch canary)] ]]",
    "let": "let 'a[$(touch canary)]'",
    "bash_env": "echo touch canary > evil-env.sh; export BASH_ENV=$PWD/evil.sh",
}


def cut(text: str) -> cutting.CutLaunch | None:
    """Return the launch cut, None if there is none or attncheck asks for its values first."""
    found = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("not here"), lambda path: None)
    if not found:
        return None
    materials = cutting.make_materials(found[0], "/stage", 30, False, 2)
    try:
        return cutting.cut_launch(found[0], cutting.cut_job(found[0], materials), {}, "/stage", materials)
    except (Unanswered, cutting.NothingToRehearse):
        return None


def run_in_shell(launch: cutting.CutLaunch, folder: Path) -> None:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("python", "torchrun"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    environ = {**os.environ, **launch.cut.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["/bin/bash", "-c", launch.command], cwd=folder, env=environ, capture_output=True, timeout=30)


def check_no_canary(text: str, folder: Path) -> bool:
    """Fail if a command of the launch runs; return whether the launch was cut at all."""
    (folder / "evil.sh").write_text("touch canary\n")
    launch = cut(text)
    made = folder / "canary"
    assert not made.exists(), "run while the launch was cut"
    if launch is not None:
        run_in_shell(launch, folder)
    assert not made.exists(), launch and launch.command
    return launch is not None


@pytest.mark.parametrize("position", POSITIONS)
def test_forms_are_not_run(position: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form in FORMS.values():
        check_no_canary(POSITIONS[position].format(form), tmp_path)


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("setting", ["export X={}\n", "X={}\n", "X={} "])
def test_values_are_not_run_when_they_are_expanded_again(
    second: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value, use = SECOND[second]
    for position in ("own_option", "option", "launcher", "cd", "export_used"):
        check_no_canary(setting.format(value) + POSITIONS[position].format(use), tmp_path)


@pytest.mark.parametrize("prologue", PROLOGUES)
def test_prologues_are_not_run(prologue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_no_canary(f"{PROLOGUES[prologue]}\n{POSITIONS['own_option'].format('x')}", tmp_path)


def test_the_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches without a command are cut, and what would run if it were handed to the shell makes the canary."""
    monkeypatch.chdir(tmp_path)
    assert all(check_no_canary(text.format("x"), tmp_path) for name, text in POSITIONS.items() if name != "for")
    harmless = []
    for name, form in FORMS.items():
        environ = {name: text for name, text in os.environ.items() if name != "UNSET_NAME"}
        subprocess.run(["/bin/bash", "-c", f"echo {form}"], env=environ, capture_output=True)
        if not (tmp_path / "canary").exists():
            harmless.append(name)
        (tmp_path / "canary").unlink(missing_ok=True)
    for name, (value, use) in SECOND.items():
        subprocess.run(["/bin/bash", "-c", f"X={value}; echo {use}"], capture_output=True)
        if not (tmp_path / "canary").exists():
            harmless.append(name)
        (tmp_path / "canary").unlink(missing_ok=True)
    assert harmless == []
