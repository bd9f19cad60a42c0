"""The text report: golden files, narrow terminals, colours only where they are wanted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.findings import Finding, Fix, Skip
from attncheck.core.report import Report
from attncheck.doctor import engine
from attncheck.report.formats import load_format
from tests import snapshots as s

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FACTS = str(s.FOLDER / "h200.json")


def make_report() -> Report:
    finding = Finding(
        "ATN201",
        "driver-too-old",
        "error",
        "driver 550.54.15 is too old for CUDA 13.0, which needs 580 or newer",
        "driver 550.54.15",
        ("torch is built for CUDA 13.0", "driver 550.54.15"),
        (
            Fix("update the driver", "manual", "NVIDIA driver >= 580"),
            Fix("use sdpa", "setting", 'attn_implementation="sdpa"\nverl: x', proven="20 steps, loss 5.54 -> 2.1"),
        ),
    )
    report = engine.run_rules(s.h200(), frozenset(), select=("ATN201",))
    return replace(report, findings=(finding,), passed=("ATN202",), suppressed=(), skips=report.skips)


def test_the_text_is_the_golden_one() -> None:
    assert load_format("text").render(make_report(), True) == (GOLDEN / "planted.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("format_name", "fix", "advice"),
    [
        ("text", "       fix     do it", "       next    look closer"),
        ("markdown", "Fix: do it", "Next: look closer"),
        ("sarif", "Fix: do it", "Next: look closer"),
        ("junit", "fix: do it", "next: look closer"),
        ("github", "fix: do it", "next: look closer"),
    ],
)
def test_what_fixes_nothing_is_not_called_a_fix(format_name: str, fix: str, advice: str) -> None:
    fixes = (Fix("do it", "env", "export A=1"), Fix("look closer", "advice", "attncheck lint --target h100x8"))
    report = make_report()
    report = replace(report, findings=(replace(report.findings[0], fixes=fixes),))
    text = load_format(format_name).render(report, False)
    assert fix in text and advice in text


def test_a_rule_that_a_finding_covers_is_listed_without_v() -> None:
    skips = (
        Skip("ATN108", "flash-attn-import-broken", "torch cannot be imported; fix ATN201 first", ("ATN201",)),
        Skip("ATN208", "torch-lacks-gpu-architecture", "the list of GPUs is unreadable"),
    )
    report = replace(make_report(), skips=skips)
    for name in ("text", "markdown"):
        brief = load_format(name).render(report, False)
        assert "fix ATN201 first" in brief and "flash-attn-import-broken" in brief and "unreadable" not in brief
        assert "the list of GPUs is unreadable" in load_format(name).render(report, True)


def run_in_terminal(columns: int, **variables: str) -> str:
    """Return what doctor prints on a real pseudo-terminal of this width."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **variables}
    environment.pop("NO_COLOR", None) if "NO_COLOR" not in variables else None
    command = [sys.executable, "-m", "attncheck", "doctor", "--facts", FACTS]
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=environment)
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux ends a pseudo-terminal so
        pass
    process.wait(30)
    os.close(leader)
    return b"".join(chunks).decode("utf-8").replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_no_color_takes_them_away() -> None:
    assert "\x1b[" in run_in_terminal(100)
    assert "\x1b[" not in run_in_terminal(100, NO_COLOR="1")


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_a_pipe_is_coloured_where_a_variable_asks_for_it(
    tmp_path: Path, variables: dict[str, str], coloured: bool
) -> None:
    settled = ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "TERM")
    plain_environ = {name: value for name, value in os.environ.items() if name not in settled}
    command = [sys.executable, "-m", "attncheck", "doctor", "--facts", FACTS, "--output", f"text={tmp_path}/report.txt"]
    plain = subprocess.run(command, capture_output=True, text=True, env=plain_environ)
    result = subprocess.run(command, capture_output=True, text=True, env={**plain_environ, **variables})
    assert ("\x1b[1;31m" in result.stdout) == coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", result.stdout) == plain.stdout, "colours change no line"
    assert (tmp_path / "report.txt").read_text() == plain.stdout, "a file gets no colours"


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_only_what_is_to_be_pasted_is_wider_than_the_terminal(columns: int) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", run_in_terminal(columns))
    plain = subprocess.run(
        [sys.executable, "-m", "attncheck", "doctor", "--facts", FACTS], capture_output=True, text=True
    ).stdout
    assert sorted("".join(text.split())) == sorted("".join(plain.split())), "wrapping lost or added something"


def test_a_pipe_gets_one_line_a_message() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "attncheck", "doctor", "--facts", FACTS], capture_output=True, text=True
    )
    assert "\x1b" not in process.stdout
    assert any(line.startswith("ATN140 ") for line in process.stdout.splitlines())
