"""The command line as a user meets it: right input, wrong input, closed pipes, Ctrl-C, odd interpreters."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from attncheck.cli.app import app, command_names, load_command
from attncheck.cli.options import EXAMINE, MEASURE, OUTPUT, RANKS
from attncheck.cli.output import _wrap_line
from attncheck.doctor.probes.interpreter import select_interpreter
from attncheck.selftest.run import select_faults
from tests.conftest import Run, all_processes_gone, find_marked_processes, find_python
from tests.snapshots import FOLDER
from tests.snippets import find_argument_error

FACTS = str(FOLDER / "h200.json")
ROOT = Path(__file__).parents[2]
SURFACE = ROOT / "tests" / "data" / "surface.txt"


def describe_surface() -> str:
    """Return a line for each command: its name, its options and arguments."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("attncheck", [])
    lines = []
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        argv = sorted(word for param in command.params for word in (*param.opts, *param.secondary_opts))
        lines.append(" ".join([name, *argv]))
    return "\n".join(lines) + "\n"


def test_the_command_surface_is_the_one_written_down() -> None:
    assert describe_surface() == SURFACE.read_text(), "run: python -m tests.update_docs"


def test_help_stands_under_headings_in_the_order_of_the_readme(attncheck: Run) -> None:
    overview = attncheck("--help")
    assert overview.returncode == 0
    assert attncheck().stdout == overview.stdout
    names = re.findall(r"^  ([a-z]+)  ", overview.stdout, re.MULTILINE)
    commands = [name for name in names if name in command_names()]
    table = re.findall(r"^\| `attncheck ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == list(dict.fromkeys(table))
    assert len(overview.stdout.splitlines()) <= 54
    assert "Begin with `attncheck demo`" in overview.stdout
    narrow = attncheck("--help", env={**os.environ, "COLUMNS": "60"}).stdout
    assert "--install-completion " in narrow and "<bool>" not in narrow and "…" not in narrow.split("Begin with")[0]
    headings = [EXAMINE, MEASURE, RANKS, OUTPUT]
    shown = re.findall(r"^(\w.*):$", attncheck("parity", "--help").stdout, re.MULTILINE)
    assert shown[:3] == ["Examples", "Arguments", "Most used"]
    assert [heading for heading in shown if heading in headings] == headings


@pytest.mark.parametrize(
    ("line", "completed"), [("attncheck pari", "parity"), ("attncheck parity --ring-s", "--ring-size")]
)
def test_the_shell_completes_commands_and_options(attncheck: Run, line: str, completed: str) -> None:
    words = len(line.split()) - 1
    env = {"_ATTNCHECK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(words)}
    assert attncheck(env=env).stdout.split() == [completed]


@pytest.mark.parametrize("name", command_names())
def test_help_at_sixty_columns_cuts_no_name_and_has_examples(attncheck: Run, name: str) -> None:
    """At fca601f: "--attn-implementa…", `<list[str]>`, and rich took `[tool.attncheck]` for markup."""
    shown = attncheck(name, "--help", env={**os.environ, "COLUMNS": "60"}).stdout
    record = load_command(name)
    assert "<list" not in shown and "<bool>" not in shown and "<str>" not in shown
    for option in SURFACE.read_text().split(f"\n{name} ", 1)[-1].splitlines()[0].split():
        assert not option.startswith("--") or re.search(rf"(?<![\w-]){option}(?![\w-])", shown), option
    assert 2 <= len(record.examples) <= 3 and len(record.most_used) <= 5
    assert set(record.most_used) <= set(re.findall(r"--[\w-]+", shown))
    for example in record.examples:
        assert f"attncheck {example}\n" in shown and not find_argument_error(shlex.split(example.partition(" > ")[0]))
    assert name != "gate" or "[tool.attncheck]" in shown


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (("run", "torchrun", "train.py"), "put -- before the command: attncheck run -- torchrun"),
        (("doctor", "--python", "."), "is a folder without bin/python"),
        (("rules", "ATN0"), "no rule's code starts with 'ATN0'"),
    ],
)
def test_a_dead_end_names_the_way_out(attncheck: Run, argv: tuple[str, ...], answer: str) -> None:
    done = attncheck(*argv)
    assert done.returncode == 2 and answer in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_folder_of_an_environment_stands_for_its_python(attncheck: Run) -> None:
    assert select_interpreter(sys.prefix).python == os.path.join(sys.prefix, "bin", "python")


def test_rules_lists_the_codes_of_a_prefix(attncheck: Run) -> None:
    lines = attncheck("rules", "atn44").stdout.splitlines()
    assert len(lines) >= 5 and all(line.startswith("ATN44") for line in lines)


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself(attncheck: Run, name: str) -> None:
    result = attncheck(name, "-h")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"Usage: attncheck {name}" in result.stdout


def test_doctor_on_recorded_facts(attncheck: Run) -> None:
    result = attncheck("doctor", "--facts", FACTS)
    assert result.returncode == 1
    assert "ATN140" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_json_is_the_whole_of_standard_output(attncheck: Run) -> None:
    result = attncheck("doctor", "--facts", FACTS, "--format", "json")
    report = json.loads(result.stdout)
    assert report["snapshot"]["schema_version"] == 1
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--fail-on", "never"), 0),
        (("--fail-on", "warning"), 1),
        (("--ignore", "ATN1"), 0),
        (("--select", "ATN2"), 0),
        (("--select", "atn140"), 1),
    ],
)
def test_exit_codes(attncheck: Run, argv: tuple[str, ...], code: int) -> None:
    assert attncheck("doctor", "--facts", FACTS, *argv).returncode == code


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("doctor", "--facts", "nowhere.json"), 2, "cannot read nowhere.json: No such file"),
        (("doctor", "--facts", "/"), 2, "cannot read /: Is a directory"),
        (("doctor", "--facts", FACTS, "--profile", "fast"), 2, "--profile 'fast' is not one of auto"),
        (("doctor", "--facts", FACTS, "--format", "xml"), 2, "--format 'xml' is not one of github, html, json"),
        (("doctor", "--facts", FACTS, "--fail-on", "x"), 2, "--fail-on 'x' is not one of"),
        (("doctor", "--facts", FACTS, "--select", "ATN140,XYZ"), 2, "no rule's code starts with 'XYZ'"),
        (("doctor", "--facts", FACTS, "--select", "ATN9xx"), 2, "write a range as ATN9"),
        (("doctor", "gpt2", "--facts", FACTS), 2, "pass MODEL to `attncheck probe`"),
        (("doctor", "--lane", "fast"), 2, "--lane 'fast' is not one of static, import, device"),
        (("doctor", "--timeout", "-3"), 2, "--timeout -3 is not a number of seconds"),
        (("doctor", "--python", "/no/such/python"), 2, "cannot start the interpreter /no/such/python: No such file"),
        (("doctor", "--python", "/bin/true"), 2, "does not behave like a Python interpreter"),
        (("doctor", "--python", "/etc/passwd"), 2, "cannot start the interpreter /etc/passwd: Permission denied"),
        (("explain", "ATN140X"), 2, "did you mean ATN140?"),
        (("explain", "ring-flash-atn-import"), 2, "did you mean ring-flash-attn-import?"),
        (("doctr",), 2, "there is no command 'doctr'; did you mean doctor?"),
        (("doctor", "--bogus"), 2, "see `attncheck doctor --help`"),
        (("doctor", "one", "two"), 2, "see `attncheck doctor --help`"),
        (("parity", "--repeat", "x"), 2, "'--repeat'"),
        (("parity", "--seed", "-1"), 2, "'--seed'"),
        (("bench", "--min-efficiency", "0", "--ring-size", "2"), 2, "--min-efficiency must be above 0"),
        (("explain",), 2, "'CODE'"),
    ],
)
def test_a_mistake_is_one_clear_line(attncheck: Run, argv: tuple[str, ...], code: int, message: str) -> None:
    result = attncheck(*argv)
    assert result.returncode == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_bad_facts_file_is_named(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes(b"\xff\xfe\x00")
    assert "facts.json is not a snapshot" in attncheck("doctor", "--facts", "facts.json").stderr
    newer = json.loads(Path(FACTS).read_text()) | {"schema_version": 99, "attncheck": "9.0"}
    (tmp_path / "facts.json").write_text(json.dumps(newer))
    assert "written by attncheck 9.0 (schema 99)" in attncheck("doctor", "--facts", "facts.json").stderr


def test_facts_from_standard_input(attncheck: Run) -> None:
    result = attncheck("doctor", "--facts", "-", input=Path(FACTS).read_text())
    assert "ATN140" in result.stdout


def test_configuration_is_honoured_and_the_command_line_wins(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text('fail-on = "never"\n')
    assert attncheck("doctor", "--facts", FACTS).returncode == 0
    assert attncheck("doctor", "--facts", FACTS, "--fail-on", "error").returncode == 1


def test_explain_prints_the_page(attncheck: Run) -> None:
    result = attncheck("explain", "driver-too-old")
    assert result.returncode == 0
    assert result.stdout.startswith("ATN201 driver-too-old (error)")
    assert "What to do:" in result.stdout


def test_rules_are_listed(attncheck: Run) -> None:
    assert len(attncheck("rules").stdout.splitlines()) >= 70
    assert len(json.loads(attncheck("rules", "--format", "json").stdout)) >= 70


def test_a_report_fits_the_schema_that_is_printed(attncheck: Run) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    result = attncheck("schema")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(attncheck("doctor", "--facts", FACTS, "--format", "json").stdout)
    jsonschema.validate(report, json.loads(result.stdout))


def test_probe_then_doctor(attncheck: Run, tmp_path: Path) -> None:
    facts = attncheck("probe", "--lane", "static")
    assert facts.returncode == 0
    (tmp_path / "facts.json").write_text(facts.stdout)
    result = attncheck("doctor", "--facts", "facts.json")
    assert result.returncode in (0, 1)
    assert sys.version.split()[0] in result.stdout


def test_no_home_and_a_reader_that_leaves(attncheck: Run) -> None:
    minimal_environ = {"PATH": os.environ["PATH"]}
    assert attncheck("doctor", "--facts", FACTS, env=minimal_environ).returncode == 1
    script = f'"{sys.executable}" -m attncheck doctor --facts "{FACTS}" | true; exit ${{PIPESTATUS[0]}}'
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == ""


@pytest.mark.parametrize(("text", "outcome"), [("exec sleep 600", 3), ("yes", 2), ("kill -SEGV $$", 2)])
def test_an_interpreter_that_hangs_floods_or_dies(
    attncheck: Run, tmp_path: Path, marker: str, text: str, outcome: int
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{text}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    result = attncheck("doctor", "--python", str(fake), "--timeout", "2")
    assert result.returncode == outcome
    assert len(result.stderr.splitlines()) == 1
    assert all_processes_gone(marker)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_leaves_nothing_running(tmp_path: Path, marker: str, signum: signal.Signals) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nsleep 600\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "attncheck", "doctor", "--python", str(fake)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(find_marked_processes(marker)) < 3:
        time.sleep(0.05)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stderr == "attncheck: interrupted; nothing is left running\n"
    assert all_processes_gone(marker)


@pytest.mark.parametrize("version", ["3.7", "3.6", "2.7"])
def test_an_interpreter_too_old_is_told_so(attncheck: Run, version: str) -> None:
    python = find_python(version)
    result = attncheck("doctor", "--python", python)
    assert result.returncode == 2
    assert f"is Python {version}; attncheck can examine Python 3.8 or newer" in result.stderr


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13", "3.14"])
def test_other_interpreters_are_examined(attncheck: Run, version: str) -> None:
    python = find_python(version)
    result = attncheck("doctor", "--python", python, "--format", "json", "--lane", "static")
    report = json.loads(result.stdout)
    assert report["snapshot"]["host"]["python_version"].startswith(version + ".")
    assert report["snapshot"]["problems"] == []


@pytest.mark.parametrize("milliseconds", [10, 40, 70, 90, 110, 130, 150, 180, 220, 300])
def test_an_interrupt_at_any_moment_leaves_nothing_running(tmp_path: Path, marker: str, milliseconds: int) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nsleep 600\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "attncheck", "doctor", "--python", str(fake)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) in (130, -signal.SIGINT, -signal.SIGTERM)  # Python may end by the signal itself
    assert all_processes_gone(marker)


def test_a_terminal_wraps_lists_between_words_and_below_their_last_column() -> None:
    row = "not installed (3)   flash_attention_2, flash_attention_3, xformers_cutlass"
    assert _wrap_line(row, 50).splitlines() == [
        "not installed (3)   flash_attention_2,",
        "                    flash_attention_3,",
        "                    xformers_cutlass",
    ]
    assert _wrap_line("| a table | of a page |", 10) == "| a table | of a page |"
    assert _wrap_line("- one two three", 10) == "- one two\n  three"


def test_the_examples_of_selftest_inject_faults_that_exist() -> None:
    """The help once gave ATN140 as an example, for which no fault is injected."""
    for example in load_command("selftest").examples:
        words = example.split()
        assert not words.count("--inject") or select_faults((words[words.index("--inject") + 1],))
