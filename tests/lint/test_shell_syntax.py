"""Scripts that bash refuses: which commands it still starts, compared with bash itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.core.launch import Source
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.shell.commands import parse_commands
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import FOLDER, read_model

BASH = shutil.which("bash")
SCRIPTS = sorted(FOLDER.glob("*/*.sh"))
STEP = 7  # every seventh line of a script is left out once


@pytest.mark.parametrize(
    ("text", "started"),
    [
        ("a 1\nif x; then\n  a 2\nfi\na 3\n", [1, 2, 3]),
        ("a 1\nfor i in 1 2; do\n  a 2\ndone\nfi\na 3\n", [1, 2]),
        ("a 1\nif x; then\n  a 2\ndone\nfi\na 3\n", [1]),
        ("a 1\nif x; then\n  a 2\n", [1]),
        ("a 1\na 2 \\\n  --out <path>\na 3\n", [1]),
        ("a 1\na 2 > log 2>&1\na 3 > >(cat)\n", [1, 2, 3]),
        ("a 1\na 2 'x\na 3\n", [1]),
        ("f() {\n  a 1\n}\nf\n}\na 2\n", [1]),
    ],
)
def test_bash_runs_what_it_has_read_completely(tmp_path: Path, text: str, started: list[int]) -> None:
    commands = [command for command in parse_commands(Source("x.sh", text, "shell")) if command.words[0].text == "a"]
    assert [int(command.words[1].text) for command in commands if not command.refused] == started
    if BASH:  # with `a` as a function that prints, bash itself starts the same commands
        script = tmp_path / "x.sh"
        script.write_text(f"a() {{ echo $1; }}\nx() {{ true; }}\n{text}")
        printed = subprocess.run([BASH, script], capture_output=True, text=True, check=False, cwd=tmp_path).stdout
        logged = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
        assert set(map(int, (printed + logged).split())) == set(started)


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_bash_refuses_the_same_scripts(path: Path) -> None:
    """Each script as it is, and without one of its lines that may close something."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    closing = [index for index, line in enumerate(lines) if line.strip() in ("fi", "done", "esac", "}", "EOF", ")")]
    for left_out in (-1, *closing[:3], *range(3, len(lines), max(len(lines) // 2, STEP))):
        text = "".join(line for index, line in enumerate(lines) if index != left_out)
        checked = subprocess.run([str(BASH), "-n"], input=text, capture_output=True, text=True, check=False)
        commands = parse_commands(Source("x.sh", text + "\nlast_command\n", "shell"))
        is_lost = not commands or commands[-1].words[0].text != "last_command"  # a heredoc or a quote takes it
        assert bool(checked.returncode) == (is_lost or bool(commands[-1].refused)) or "here-document" in checked.stderr


def test_a_refused_command_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("for i in 1; do\ntrl sft --model_name_or_path m --dataset_name d --output_dir o\n")
    source = read_source(str(tmp_path / "run.sh"))
    report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    [finding] = [finding for finding in report.findings or () if "bash refuses" in finding.message]
    assert (finding.severity, finding.code) == ("error", "ATN441")
    assert "line 1: `for` is never closed" in finding.message


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("betas= (1.0)\n{}", 1),
        ("{}betas= (1.0)\n", 0),  # bash has started it before
        ("for i in 1; do\n  {}  a | | b\ndone\n", 3),
        ("shopt -s extglob\nls !(a)\n{}", 0),  # bash -n does not run shopt
        ("#!/bin/zsh\nbetas= (1.0)\n{}", 0),
        ("betas=(1.0)\n{}", 0),
    ],
)
def test_bash_itself_is_asked_about_the_script(tmp_path: Path, text: str, line: int) -> None:
    script = tmp_path / "run.sh"
    script.write_text(text.replace("{}", "trl sft --model_name_or_path m --dataset_name d --output_dir o\n"))
    (tmp_path / "ran.sh").write_text("touch ran\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("BASH_ENV", str(tmp_path / "ran.sh"))
        source = read_source("run.sh")
        report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    found = [item.message for item in report.findings if "bash refuses" in item.message]
    assert len(found) == bool(line) and all(f"line {line}: syntax error" in message for message in found)
    assert not (tmp_path / "ran").exists()
