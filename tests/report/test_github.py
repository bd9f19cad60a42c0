"""GitHub: annotations as its runner reads them, the job summary, the action run for real, the hook, the examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.report.formats import github, load_format
from tests.report import reports
from tests.report.test_junit import NASTY

HERE = Path(__file__).parents[2]
COMMANDS = re.compile(r"::(error|warning|notice) ([^\r\n]*?)::([^\r\n]*)")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Read workflow commands as actions/runner 258d6c8 does, src/Runner.Common/ActionCommand.cs (`TryParseV2`)."""
    found = []
    for line in re.split(r"\r\n|\r|\n", text):
        match = COMMANDS.fullmatch(line)
        if match:
            pairs = dict(pair.split("=", 1) for pair in match.group(2).split(","))
            found.append(
                (match.group(1), {key: unescaped(value) for key, value in pairs.items()}, unescaped(match.group(3)))
            )
    return found


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_levels_places_and_words() -> None:
    found = commands(load_format("github").render(reports.everything(), False))
    assert [(level, told["title"][:6]) for level, told, _ in found] == [
        ("error", "ATN140"),
        ("error", "ATN401"),
        ("warning", "ATN201"),
        ("notice", "ATN110"),
    ]
    assert {key: found[1][1][key] for key in ("file", "line", "col")} == {"file": "run.sh", "line": "2", "col": "3"}
    assert "file" not in found[0][1]
    assert "fix: install it (proven: 20 steps)\n    uv pip install transformers==5.3.0" in found[0][2]


def test_what_messages_hold_cannot_end_a_command_or_begin_one() -> None:
    nasty = NASTY + "100% a:b,c\r\n::set-env name=X::y\n##[add-path]z %0A"
    finding = reports.finding(message=nasty, locations=(SourceLocation("a,b:c%/x\n.sh", 2, 3),), evidence=(nasty,))
    text = load_format("github").render(reports.plain(findings=(finding,)), False)
    assert len(text.splitlines()) >= 2 and len(re.split(r"\r\n|\r|\n", text)) == 3, "the command, the count, the end"
    (found,) = commands(text)
    assert found[1]["file"] == "a,b:c%/x\n.sh" and found[2].startswith(nasty)


def test_ten_of_a_level_the_gravest_first_and_the_rest_counted() -> None:
    many = [reports.finding(severity="note", message=str(n)) for n in range(12)]
    many += [reports.finding(severity="error", message=str(n)) for n in range(13)]
    text = load_format("github").render(reports.plain(findings=tuple(many)), False)
    levels = [level for level, _, _ in commands(text)]
    assert levels == ["error"] * 10 + ["notice"] * 10
    assert text.splitlines()[-1].startswith("attncheck doctor: 13 errors, 12 notes; 5 of them not annotated")
    assert load_format("github").render(reports.plain(findings=()), False) == "attncheck doctor: nothing found\n"


def test_what_is_in_no_file_of_the_checkout_names_none(checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("ring_flash_attn\n")
    elsewhere = reports.finding(locations=(SourceLocation(COMMAND), SourceLocation("/elsewhere/run.sh", 3, 1)))
    anchored = reports.finding()
    found = commands(load_format("github").render(reports.plain(findings=(elsewhere, anchored)), False))
    assert "file" not in found[0][1] and found[1][1]["file"] == "requirements.txt"


def test_the_summary_is_markdown_and_is_cut_between_lines() -> None:
    report = reports.everything()
    assert github.job_summary(report) == load_format("markdown").render(report, True)
    whole = github.job_summary(report).encode()
    for room in range(0, len(whole), 7):
        text = github.job_summary(report, room)
        assert len(text.encode()) <= room and text.count("```") % 2 == 0
    quiet = replace(report, findings=())
    assert github.job_summary(quiet, 1 << 20).startswith("# attncheck gate\n")


def action() -> Any:
    return YAML(typ="safe").load((HERE / "action.yml").read_text(encoding="utf-8"))


def step(name: str) -> Any:
    return next(step for step in action()["runs"]["steps"] if step["id"] == name)


def run_step(name: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as the runner does: bash with -e and pipefail, inputs in the variables that it declares."""
    declared = dict.fromkeys(step(name)["env"], "")
    assert values.keys() <= {*declared, "PATH", "PIP_TARGET"}
    script = folder / f"{name}.sh"
    script.write_text(step(name)["run"], encoding="utf-8")
    runner = {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env={**os.environ, **declared, **runner, **values},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def told(folder: Path) -> dict[str, str]:
    """Return a step's outputs."""
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def wheel(folder: Path) -> Path:
    """Return a wheel that stands for attncheck's: it leads to this source and to the packages installed here."""
    path = folder / "attncheck-9.9.9-py3-none-any.whl"
    metadata = "attncheck-9.9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("attncheck_here.pth", f"{HERE}\n{sysconfig.get_path('purelib')}\n")
        archive.writestr(f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: attncheck\nVersion: 9.9.9\n")
        archive.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{metadata}/RECORD", "")
    return path


def test_the_action_installs_beside_the_environment_and_examines_it(tmp_path: Path) -> None:
    """Both steps, for real: pip installs a wheel into a new environment, attncheck looks at the interpreter here."""
    elsewhere = tmp_path / "elsewhere"
    values = {
        "ATTNCHECK_PYTHON": sys.executable,
        "ATTNCHECK_VERSION": str(wheel(tmp_path)),
        "PIP_TARGET": str(elsewhere),
    }
    installed = run_step("install", tmp_path, **values)
    assert installed.returncode == 0, installed.stderr
    python = told(tmp_path)["python"]
    assert Path(python).is_relative_to(tmp_path) and not elsewhere.exists(), "PIP_TARGET would have moved another place"
    assert list(Path(python).parents[1].glob("lib/*/site-packages/attncheck-9.9.9.dist-info"))
    done = run_step(
        "run",
        tmp_path,
        ATTNCHECK=python,
        ATTNCHECK_COMMAND="doctor",
        ATTNCHECK_PYTHON=sys.executable,
        ATTNCHECK_ARGS="--lane static --format json",
        ATTNCHECK_FAIL_ON="never",
    )
    assert done.returncode == 0 and told(tmp_path)["exit-code"] == "0", done.stderr
    assert '"command": "doctor"' in done.stdout


def stand_in(folder: Path, body: str) -> str:
    """Return a program that stands for the installed python: real for `-c`, and this script for attncheck."""
    path = folder / "python-of-attncheck"
    path.write_text(f'#!/bin/bash\nif [ "$2" = -c ]; then exec {sys.executable} "$@"; fi\n{body}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", []),
        ("  ", []),
        ("run.sh 'a b.yaml'\n--target h100x8 # why", ["run.sh", "a b.yaml", "--target", "h100x8"]),
        (
            "$(touch pwned) `touch pwned` ; touch pwned | * ''",
            ["$(touch", "pwned)", "`touch", "pwned`", ";", "touch", "pwned", "|", "*", ""],
        ),
    ],
)
def test_the_action_passes_words_and_runs_none_of_them(tmp_path: Path, arguments: str, words: list[str]) -> None:
    python = stand_in(tmp_path, "printf '%s\\n' \"$@\"")
    done = run_step(
        "run", tmp_path, ATTNCHECK=python, ATTNCHECK_COMMAND="lint", ATTNCHECK_ARGS=arguments, ATTNCHECK_PYTHON="py"
    )
    assert done.stdout.splitlines() == ["-I", "-m", "attncheck", "lint", "--python", "py", *words], done.stderr
    assert not (tmp_path / "pwned").exists()


def test_the_action_ends_as_attncheck_does_and_names_its_files(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "printf '%s\\n' \"$@\"; touch a.sarif; exit 3")
    done = run_step(
        "run",
        tmp_path,
        ATTNCHECK=python,
        ATTNCHECK_COMMAND="gate",
        ATTNCHECK_FAIL_ON="warning",
        ATTNCHECK_SARIF="a.sarif",
        ATTNCHECK_JUNIT="gone.xml",
    )
    assert done.returncode == 3
    assert told(tmp_path) == {"exit-code": "3", "sarif": str(tmp_path.resolve() / "a.sarif")}
    python_here = shutil.which("python") or shutil.which("python3")
    assert done.stdout.splitlines()[4:] == [
        "--python",
        python_here,
        "--fail-on",
        "warning",
        "--output",
        "sarif=a.sarif",
        "--output",
        "junit=gone.xml",
    ]


def test_a_quote_that_is_not_closed_is_bad_usage(tmp_path: Path) -> None:
    done = run_step(
        "run", tmp_path, ATTNCHECK=stand_in(tmp_path, "echo ran"), ATTNCHECK_COMMAND="lint", ATTNCHECK_ARGS="'x"
    )
    assert done.returncode == 2 and "::error title=attncheck::" in done.stdout and "ran" not in done.stdout


def test_no_script_of_the_action_holds_an_expression() -> None:
    described = action()
    for each in described["runs"]["steps"]:
        assert "${{" not in each["run"], "an input written into a script is run by it"
        assert each["shell"] == "bash"
    used = re.findall(r"inputs\.([\w-]+)", (HERE / "action.yml").read_text(encoding="utf-8"))
    assert set(used) == set(described["inputs"])


def test_the_hook_takes_launch_scripts_and_leaves_the_rest() -> None:
    (hook,) = YAML(typ="safe").load((HERE / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("attncheck-lint", "python", True)
    taken = (
        "run_sft.sh",
        "examples/train_ppo_ray.sh",
        "slurm/any.sbatch",
        "conf/grpo.yaml",
        "x/Train-7B.yml",
        "a.slurm",
    )
    left = ("README.md", "train.py", ".github/workflows/test.yml", "docker-compose.yaml", "install.sh", "sft/setup.sh")
    assert [name for name in (*taken, *left) if re.search(hook["files"], name)] == list(taken)


@pytest.mark.parametrize("name", ["example-hosted.yml", "example-gpu.yml"])
def test_an_example_starts_by_hand_alone_and_uses_inputs_that_are_there(name: str) -> None:
    text = (HERE / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow = YAML(typ="safe").load(text)
    assert list(workflow[True if True in workflow else "on"]) == ["workflow_dispatch"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if step.get("uses") == "./"]
    assert steps
    for each in steps:
        assert each["with"].keys() <= action()["inputs"].keys()
    for output in re.findall(r"steps\.\w+\.outputs\.([\w-]+)", text):
        assert output in action()["outputs"]
