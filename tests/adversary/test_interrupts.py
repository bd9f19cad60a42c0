"""Ctrl-C at any moment of any command ends with 130, in one line and without a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adversary.outcomes import CLEAN, FOUND, INTERRUPTED
from tests.conftest import without_progress

FACTS = shlex.quote(str(Path(__file__).parents[1] / "data" / "snapshots" / "h200.json"))
LAUNCH = "torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft --data.max_len 4096 --ds.packing_samples\n"
# Sends the signal at a call of a function of ours, once the handlers are in place, and counts the calls.
DRIVER = """
import os, sys
moment, number, counted = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv[:] = ["attncheck", *sys.argv[4:]]
import attncheck.__main__ as entry
from attncheck.core.io import interrupts
count, keep_exit_code, install_handlers = 0, entry._keep_exit_code, interrupts.install_handlers
def count_call(frame, event, argument):
    global count
    if event == "call" and f"{os.sep}attncheck{os.sep}" in frame.f_code.co_filename:
        count += 1
        if count == moment:
            sys.setprofile(None)
            os.kill(os.getpid(), number)
def start():
    install_handlers()
    sys.setprofile(count_call)
def stop(code):
    sys.setprofile(None)
    with open(counted, "w") as stream:
        stream.write(str(count))
    keep_exit_code(code)
interrupts.install_handlers, entry._keep_exit_code = start, stop
entry.main()
"""
COMMANDS = {
    "doctor": f"doctor --facts {FACTS}",
    "doctor static": "doctor --lane static",
    "lint": "lint launch.sh --target h100x8",
    "lint write": "lint --write launch.sh --target h100x8",
    "gate": "gate --checks doctor,lint --launch launch.sh --target h100x8",
    "run refused": (
        "run --no-cache --checks lint --launch launch.sh --target h100x8,openrlhf=0.11.2,flash-attn=none -- true"
    ),
    "baseline": "baseline --checks doctor --target h100x8 --baseline new.json",
    "lock": "lock new.json --lane static",
    "lock check": f"lock --check lock.json --facts {FACTS}",
    "init": "init --write",
    "diff": "diff report.json lock.json",
    "upgrade": f"upgrade transformers==5.17.0 --facts {FACTS}",
    "explain": "explain ATN140",
    "rules": "rules",
    "schema": "schema",
    "report": "report report.json",
    "selftest list": "selftest --list",
    "probe": "probe --lane static",
    "trust": "trust policy",
    "trust list": "trust --list",
    "backends": "backends --device cpu",
}
SHARES = (0.0, 0.25, 0.5, 0.75, 0.95)  # of the calls that a command makes
QUICK = ("init",)  # `baseline` has its own test, which tries as many


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # another one would be named in a line
    folder = tmp_path / "project"
    (folder / "policy").mkdir(parents=True)
    for path in (folder / "launch.sh", folder / "policy" / "launch.sh"):
        path.write_text(LAUNCH)
    (folder / "policy" / "attncheck.toml").write_text('launch = ["launch.sh"]\n')
    for command in (f"doctor --facts {FACTS} --output json=report.json", f"lock lock.json --facts {FACTS}"):
        subprocess.run([sys.executable, "-m", "attncheck", *shlex.split(command)], cwd=folder, capture_output=True)
    return folder


def start(project: Path, name: str, moment: int, number: int = signal.SIGINT) -> subprocess.CompletedProcess[str]:
    counted = str(project.parent / "counted")
    words = [sys.executable, "-c", DRIVER, str(moment), str(number), counted, *shlex.split(COMMANDS[name])]
    result = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=300)
    (project / "attncheck.toml").unlink(missing_ok=True)
    return result


def count_calls(project: Path, name: str) -> int:
    """Return how many calls of our functions a command makes, once its caches are filled."""
    for _ in range(2):
        assert start(project, name, -1).returncode in (CLEAN, FOUND)
    return int((project.parent / "counted").read_text())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in COMMANDS]
)
def test_an_interrupt_at_any_moment_ends_with_130(project: Path, name: str) -> None:
    calls = count_calls(project, name)
    for number in (signal.SIGINT, signal.SIGTERM) if name not in QUICK else (signal.SIGINT,):
        for share in SHARES:
            result = start(project, name, 1 + int(share * calls), number)
            assert result.returncode == INTERRUPTED, (share, result.stderr)
            assert "Traceback" not in result.stderr and "interrupted" in result.stdout + result.stderr
            assert without_progress(result.stderr).count("\n") <= 2 or name == "run refused"  # whose report is there
            assert not [path for path in os.listdir(project) if path.startswith(".attncheck")]


def test_an_interrupted_baseline_says_that_it_wrote_nothing(project: Path) -> None:
    calls = count_calls(project, "baseline")
    (project / "new.json").unlink()
    lines = set()
    for share in SHARES:
        result = start(project, "baseline", 1 + int(share * calls))
        assert result.returncode == INTERRUPTED and not (project / "new.json").exists()
        lines.add(without_progress(result.stderr))
    unwritten = "attncheck: interrupted; new.json was not written\n"
    others = {"attncheck: interrupted\n", "attncheck: interrupted; nothing is left running\n"}  # before a check runs
    assert unwritten in lines and lines - {unwritten} <= others
