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

from attncheck.core.io.visible import indent_continuation
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.report.finding_lines import INDENT
from attncheck.report.formats import github, load_format
from tests.report import reports
from tests.report.test_junit import NASTY

REPOSITORY = Path(__file__).parents[2]
COMMANDS = re.compile(r"::(error|warning|notice) ([^\r\n]*?)::([^\r\n]*)")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


def parse_commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Read workflow commands as actions/runner 258d6c8 does, src/Runner.Common/ActionCommand.cs (`TryParseV2`)."""
    commands = []
    for line in re.split(r"\r\n|\r|\n", text):
        match = COMMANDS.fullmatch(line)
        if match:
            pairs = dict(pair.split("=", 1) for pair in match.group(2).split(","))
            commands.append(
                (match.group(1), {key: unescape(value) for key, value in pairs.items()}, unescape(match.group(3)))
            )
    return commands


def unescape(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_levels_places_and_words() -> None:
    commands = parse_commands(load_format("github").render(reports.make_gate_report(), False))
    assert [(level, parameters["title"][:6]) for level, parameters, _ in commands] == [
        ("error", "ATN140"),
        ("error", "ATN401"),
        ("warning", "ATN201"),
        ("notice", "ATN110"),
    ]
    assert {key: commands[1][1][key] for key in ("file", "line", "col")} == {"file": "run.sh", "line": "2", "col": "3"}
    assert "file" not in commands[0][1]
    assert "fix: install it (proven: 20 steps)\n    uv pip install transformers==5.3.0" in commands[0][2]


def test_what_messages_hold_cannot_end_a_command_or_begin_one() -> None:
    nasty = NASTY + "100% a:b,c\r\n::set-env name=X::y\n##[add-path]z %0A"
    finding = reports.make_finding(message=nasty, locations=(SourceLocation("a,b:c%/x\n.sh", 2, 3),), evidence=(nasty,))
    text = load_format("github").render(reports.make_doctor_report(findings=(finding,)), False)
    assert len(text.splitlines()) >= 2 and len(re.split(r"\r\n|\r|\n", text)) == 3, "the command, the count, the end"
    (command,) = parse_commands(text)
    assert command[1]["file"] == "a,b:c%/x\n.sh" and command[2].startswith(indent_continuation(nasty, INDENT))


def test_ten_of_a_level_the_by_severity_and_the_rest_counted() -> None:
    many = [reports.make_finding(severity="note", message=str(n)) for n in range(12)]
    many += [reports.make_finding(severity="error", message=str(n)) for n in range(13)]
    text = load_format("github").render(reports.make_doctor_report(findings=tuple(many)), False)
    levels = [level for level, _, _ in parse_commands(text)]
    assert levels == ["error"] * 10 + ["notice"] * 10
    assert text.splitlines()[-1].startswith("attncheck doctor: 13 errors (ATN140), 12 notes · ")
    assert (
        load_format("github")
        .render(reports.make_doctor_report(findings=()), False)
        .startswith("attncheck doctor: no problems (")
    )


def test_what_is_in_no_file_of_the_checkout_names_none(checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("ring_flash_attn\n")
    elsewhere = reports.make_finding(locations=(SourceLocation(COMMAND), SourceLocation("/elsewhere/run.sh", 3, 1)))
    about_package = reports.make_finding()
    commands = parse_commands(
        load_format("github").render(reports.make_doctor_report(findings=(elsewhere, about_package)), False)
    )
    assert "file" not in commands[0][1] and commands[1][1]["file"] == "requirements.txt"


def test_the_summary_is_markdown_and_is_cut_between_lines() -> None:
    report = reports.make_gate_report()
    assert github.format_job_summary(report) == load_format("markdown").render(report, True)
    summary = github.format_job_summary(report).encode()
    for room in range(0, len(summary), 7):
        text = github.format_job_summary(report, room)
        assert len(text.encode()) <= room and text.count("```") % 2 == 0
    quiet = replace(report, findings=())
    assert github.format_job_summary(quiet, 1 << 20).startswith("# attncheck gate\n")


def load_action() -> Any:
    return YAML(typ="safe").load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))


def find_step(name: str) -> Any:
    return next(step for step in load_action()["runs"]["steps"] if step["id"] == name)


def run_step(name: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as the runner does: bash with -e and pipefail, inputs in the variables that it declares."""
    declared = dict.fromkeys(find_step(name)["env"], "")
    assert values.keys() <= {*declared, "PATH", "PIP_TARGET"}
    script = folder / f"{name}.sh"
    script.write_text(find_step(name)["run"], encoding="utf-8")
    runner = {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env={**os.environ, **declared, **runner, **values},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def read_step_outputs(folder: Path) -> dict[str, str]:
    """Return a step's outputs."""
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def write_wheel(folder: Path) -> Path:
    """Write a wheel that represents attncheck's: it leads to this source and to the packages installed here."""
    path = folder / "attncheck-9.9.9-py3-none-any.whl"
    metadata = "attncheck-9.9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("attncheck_here.pth", f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
        archive.writestr(f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: attncheck\nVersion: 9.9.9\n")
        archive.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{metadata}/RECORD", "")
    return path


def test_the_action_installs_beside_the_environment_and_examines_it(tmp_path: Path) -> None:
    """Both steps, for real: pip installs a wheel into a new environment, attncheck looks at the interpreter here."""
    elsewhere = tmp_path / "elsewhere"
    values = {
        "ATTNCHECK_PYTHON": sys.executable,
        "ATTNCHECK_VERSION": str(write_wheel(tmp_path)),
        "PIP_TARGET": str(elsewhere),
    }
    installed = run_step("install", tmp_path, **values)
    assert installed.returncode == 0, installed.stderr
    python = read_step_outputs(tmp_path)["python"]
    assert Path(python).is_relative_to(tmp_path) and not elsewhere.exists(), "PIP_TARGET would have moved another place"
    assert list(Path(python).parents[1].glob("lib/*/site-packages/attncheck-9.9.9.dist-info"))
    process = run_step(
        "run",
        tmp_path,
        ATTNCHECK=python,
        ATTNCHECK_COMMAND="doctor",
        ATTNCHECK_PYTHON=sys.executable,
        ATTNCHECK_ARGS="--lane static --format json",
        ATTNCHECK_FAIL_ON="never",
    )
    assert process.returncode == 0 and read_step_outputs(tmp_path)["exit-code"] == "0", process.stderr
    assert '"command": "doctor"' in process.stdout


def write_stand_in(folder: Path, body: str) -> str:
    """Write a program that represents the installed python: real for `-c`, and this script for attncheck."""
    path = folder / "python-of-attncheck"
    path.write_text(f'#!/bin/bash\nif [ "$2" = -c ]; then exec {sys.executable} "$@"; fi\n{body}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "passed_arguments"),
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
def test_the_action_passes_words_and_runs_none_of_them(
    tmp_path: Path, arguments: str, passed_arguments: list[str]
) -> None:
    python = write_stand_in(tmp_path, "printf '%s\\n' \"$@\"")
    process = run_step(
        "run", tmp_path, ATTNCHECK=python, ATTNCHECK_COMMAND="lint", ATTNCHECK_ARGS=arguments, ATTNCHECK_PYTHON="py"
    )
    assert process.stdout.splitlines() == ["-I", "-m", "attncheck", "lint", "--python", "py", *passed_arguments], (
        process.stderr
    )
    assert not (tmp_path / "pwned").exists()


def test_the_action_ends_as_attncheck_does_and_names_its_files(tmp_path: Path) -> None:
    python = write_stand_in(tmp_path, "printf '%s\\n' \"$@\"; touch a.sarif; exit 3")
    process = run_step(
        "run",
        tmp_path,
        ATTNCHECK=python,
        ATTNCHECK_COMMAND="gate",
        ATTNCHECK_FAIL_ON="warning",
        ATTNCHECK_SARIF="a.sarif",
        ATTNCHECK_JUNIT="gone.xml",
    )
    assert process.returncode == 3
    assert read_step_outputs(tmp_path) == {"exit-code": "3", "sarif": str(tmp_path.resolve() / "a.sarif")}
    python_on_path = shutil.which("python") or shutil.which("python3")
    assert process.stdout.splitlines()[4:] == [
        "--python",
        python_on_path,
        "--fail-on",
        "warning",
        "--output",
        "sarif=a.sarif",
        "--output",
        "junit=gone.xml",
    ]


def test_a_quote_that_is_not_closed_is_bad_usage(tmp_path: Path) -> None:
    process = run_step(
        "run", tmp_path, ATTNCHECK=write_stand_in(tmp_path, "echo ran"), ATTNCHECK_COMMAND="lint", ATTNCHECK_ARGS="'x"
    )
    assert process.returncode == 2 and "::error title=attncheck::" in process.stdout and "ran" not in process.stdout


def test_no_script_of_the_action_holds_an_expression() -> None:
    action = load_action()
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "an input written into a script is run by it"
        assert step["shell"] == "bash"
    used_inputs = re.findall(r"inputs\.([\w-]+)", (REPOSITORY / "action.yml").read_text(encoding="utf-8"))
    assert set(used_inputs) == set(action["inputs"])


def test_the_hook_takes_launch_scripts_and_leaves_the_rest() -> None:
    (hook,) = YAML(typ="safe").load((REPOSITORY / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("attncheck-lint", "python", True)
    launches = (
        "run_sft.sh",
        "examples/train_ppo_ray.sh",
        "slurm/any.sbatch",
        "conf/grpo.yaml",
        "x/Train-7B.yml",
        "a.slurm",
    )
    other_files = (
        "README.md",
        "train.py",
        ".github/workflows/test.yml",
        "docker-compose.yaml",
        "install.sh",
        "sft/setup.sh",
    )
    assert [name for name in (*launches, *other_files) if re.search(hook["files"], name)] == list(launches)


@pytest.mark.parametrize("name", ["example-hosted.yml", "example-gpu.yml"])
def test_an_example_starts_by_hand_alone_and_uses_inputs_that_are_there(name: str) -> None:
    text = (REPOSITORY / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow = YAML(typ="safe").load(text)
    assert list(workflow[True if True in workflow else "on"]) == ["workflow_dispatch"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if step.get("uses") == "./"]
    assert steps
    for step in steps:
        assert step["with"].keys() <= load_action()["inputs"].keys()
    for output in re.findall(r"steps\.\w+\.outputs\.([\w-]+)", text):
        assert output in load_action()["outputs"]
