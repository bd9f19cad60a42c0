"""A sitting with attncheck's measuring commands: a busy machine, Ctrl-C, what to run, and what failed the last time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attncheck.measure.suites import make_suite
from tests.conftest import Run, all_processes_gone
from tests.plugins import write_backend, write_plugin

pytest.importorskip("torch")
PARITY = ("parity", "--suite", "quick", "--device", "cpu", "--seed", "0")
FIRST_CASE = "dense-causal-s257-h4kv2-d64-bf16-normal"
# Hangs under a condition, having said so in a file.
HANGS = """
def run(inputs, deterministic):
    calls = open({log!r}, "a")
    calls.write("x")
    calls.flush()
    calls.close()
    if {condition}:
        open({log!r} + ".hangs", "w").close()
        time.sleep(1000)
    return right(inputs, deterministic)
"""
STARVES = """
def run(inputs, deterministic):
    if inputs.case.head_dim == 80 and not ({forgives} and os.path.exists({log!r})):
        open({log!r}, "w").close()
        while True:
            stop = time.thread_time() + 0.02
            while time.thread_time() < stop:
                pass
            time.sleep(0.06)
    return right(inputs, deterministic)
"""


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "attncheck"


def run_starving(attncheck: Run, folder: Path, forgives: bool) -> subprocess.CompletedProcess[str]:
    source = STARVES.format(log=str(folder / "log"), forgives=forgives)
    environment = write_backend(folder / "site", "starved", source)
    cases = ("--case", "d80", "--case", "window", "--timeout", "2")
    return attncheck(*PARITY, *cases, "--backend", "starved", "--format", "json", env=environment)


@pytest.mark.nightly
def test_a_case_that_a_busy_machine_held_up_passes_the_second_time(
    attncheck: Run, tmp_path: Path, caches: Path, marker: str
) -> None:
    done = run_starving(attncheck, tmp_path, forgives=True)
    assert done.returncode == 0, done.stdout
    assert {verdict["answer"] for verdict in json.loads(done.stdout)["parity"]["verdicts"]} <= {"pass", "refused"}


@pytest.mark.nightly
def test_a_case_that_runs_out_of_time_twice_is_no_fault_and_no_pass(
    attncheck: Run, tmp_path: Path, caches: Path, marker: str
) -> None:
    done = run_starving(attncheck, tmp_path, forgives=False)
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert report["findings"] == []
    lost = [verdict for verdict in report["parity"]["verdicts"] if verdict["answer"] == "lost"]
    assert lost and all("ran out of time twice" in verdict["reason"] for verdict in lost[:1])
    assert "not judged" in report["unanswered"][0]["reason"]


def interrupt(arguments: list[str], environment: dict[str, str], sign: Path) -> tuple[int, str, str]:
    """Run a command, send it Ctrl-C once `sign` is there, and return its code and output."""
    command = [sys.executable, "-m", "attncheck", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, cwd=sign.parent
    )
    deadline = time.monotonic() + 300
    while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)  # what was measured before arrives
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


INTERRUPTED = {  # command: when the planted backend hangs, where the results are
    "parity": ("os.path.getsize({log!r}) > 12", "runs"),
    "determinism": ("os.path.getsize({log!r}) > 12", "repeats"),
    "bench": ("inputs.case.backward", "timings"),
}


@pytest.mark.parametrize(
    "command", ["parity", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("determinism", "bench"))]
)
def test_ctrl_c_shows_what_was_measured(command: str, tmp_path: Path, caches: Path, marker: str) -> None:
    condition, results = INTERRUPTED[command]
    log = str(tmp_path / "log")
    source = HANGS.format(log=log, condition=condition.format(log=log))
    environment = write_backend(tmp_path / "site", "hangs", source)
    arguments = [command, "--device", "cpu", "--backend", "hangs", "--format", "json", "--output", "junit=tests.xml"]
    narrow = {"parity": ("--suite", "quick"), "determinism": ("--repeat", "4"), "bench": ("--seqlen", "64")}
    arguments += narrow[command]
    code, stdout, stderr = interrupt(arguments, environment, Path(log + ".hangs"))
    assert code == 130, stderr
    assert stderr == "attncheck: interrupted; nothing is left running; these are the results so far\n"
    report = json.loads(stdout)
    section = report[command]
    assert section["measured_on"]["interrupted"] and section["measured_on"]["not_reached"] > 0
    assert section[results] and report["exit_code"] == 130
    assert "interrupted before its end" in report["unanswered"][0]["reason"]
    assert "interrupted before its end" in (tmp_path / "tests.xml").read_text()
    assert all_processes_gone(marker)


CHECK = """
import time
from attncheck.smoke.checks import SmokeCheck

def run(testbed):
    open({sign!r}, "w").close()
    time.sleep(1000)

CHECK = SmokeCheck("hangs", "a planted question", "ATN430", 95, lambda plan: "", run, lambda result: result.reason)
"""


@pytest.mark.nightly
def test_ctrl_c_shows_the_checks_of_smoke(tmp_path: Path, marker: str) -> None:
    sign = tmp_path / "sign"
    environment = write_plugin(tmp_path / "site", "hangs", CHECK.format(sign=str(sign)), "attncheck.proving")
    only = ["--only", "what_ran", "--only", "hangs", "--only", "implementation"]
    code, stdout, _ = interrupt(["smoke", "llama", "--device", "cpu", "--format", "json", *only], environment, sign)
    assert code == 130
    (plan_run,) = json.loads(stdout)["smoke"]["plan_runs"]
    outcomes = {result["check"]: result["outcome"] for result in plan_run["results"]}
    assert outcomes == {"what_ran": "ok", "implementation": "ok", "hangs": "skipped"}


def list_cases(attncheck: Run, *arguments: str, **options: Any) -> list[str]:
    done = attncheck("parity", "--list", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_cases_are_listed_by_names_that_select_them(attncheck: Run) -> None:
    from attncheck.measure import parity

    names = list_cases(attncheck, "--suite", "quick")
    assert names[0] == FIRST_CASE and len(names) == len(set(names)) == len(make_suite("quick"))
    assert list_cases(attncheck, "--suite", "quick", "--case", "heads", "--dtype", "bf16") < names
    over_ranks = list_cases(attncheck, "--suite", "quick", "--ring-size", "2")
    assert over_ranks and all("-cp2-" in name for name in over_ranks if "cp" in name)
    script = attncheck("parity", "--suite", "quick", "--backend", "eager", "--explain-case", names[3])
    assert script.returncode == 0 and "torch" in script.stdout
    tried = 0
    for suite in ("quick", "standard", "full"):
        cases = make_suite(suite, 0)
        for case in cases:
            request = parity.Request(suite=suite, cases=(case.name,))
            assert parity.select_cases(cases, request) == (case,)
            tried += 1
    print(f"{tried} names selected their case alone")


def test_what_failed_the_last_time_runs_alone_until_it_passes(attncheck: Run, tmp_path: Path, caches: Path) -> None:
    source = (
        "def run(inputs, deterministic):\n    if inputs.case.probe == 'prefix' and not os.path.exists({fixed!r}):\n"
        "        raise ValueError('no luck')\n    return right(inputs, deterministic)"
    ).format(fixed=str(tmp_path / "fixed"))
    environment = write_backend(tmp_path / "site", "shaky", source)
    arguments = (*PARITY, "--backend", "shaky", "--case", "*-prefix", "--case", "*-heads")
    assert attncheck(*arguments, env=environment).returncode == 1
    (failed,) = list_cases(attncheck, *PARITY[1:], "--last-failed", env=environment)
    assert failed.endswith("-prefix")
    (tmp_path / "fixed").touch()
    done = attncheck(*PARITY, "--last-failed", "--format", "json", env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["parity"]["runs"]
    assert (run["backend"], run["case"]["name"]) == ("shaky", failed)
    assert not list(caches.glob("last-failed-*")), "it is forgotten"
    again = attncheck(*PARITY, "--last-failed", "--list", env=environment)
    assert len(again.stdout.splitlines()) == len(make_suite("quick"))
    assert again.stderr == "attncheck: --last-failed found no recorded failure, so all cases run\n"


def test_nothing_is_written_while_nothing_has_failed(caches: Path) -> None:
    from attncheck.cli.last_failed import FailureMemory
    from attncheck.core.report import Report
    from attncheck.core.results.parity import ParitySection
    from attncheck.core.verdicts import Verdict
    from tests import snapshots as s

    def report(**answers: Any) -> Report:
        verdicts = tuple(Verdict("parity", "eager", case, "", answer, "") for case, answer in answers.items())
        return Report("parity", s.laptop(), sections={"parity": ParitySection(verdicts=verdicts)})

    memory, other = FailureMemory("python", "quick", None), FailureMemory("python", "full", None)
    memory.update(report(a="pass", b="refused"))
    assert not caches.exists()
    memory.update(report(a="fail", b="lost", c="pass", d="warn"))
    assert memory.read() == (("eager", "a"), ("eager", "b"), ("eager", "d")) and other.read() == ()
    memory.update(report(a="pass", c="fail"))
    assert memory.read() == (("eager", "b"), ("eager", "d"), ("eager", "c")), "what was not run is not forgotten"
    assert memory.path is not None and memory.path.stat().st_mode & 0o077 == 0
    memory.path.write_text('{"not": ["a list"')
    assert memory.read() == ()


def test_what_is_remembered_is_not_for_ranks_of_a_launcher(attncheck: Run, caches: Path) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}
    done = attncheck("parity", "--last-failed", "--ring-size", "2", env={**os.environ, **ranks})
    assert done.returncode == 2 and "name cases with --case" in done.stderr


@pytest.mark.nightly
def test_a_benchmark_of_which_every_row_raises_is_no_answer(attncheck: Run) -> None:
    """Once: exit 0, and no problems."""
    pytest.importorskip("ring_flash_attn")
    done = attncheck("bench", "--ring-size", "2", "--no-emulate", "--device", "cpu", timeout=600)
    if "ok" in done.stdout and "raised" not in done.stdout:
        pytest.skip("flash-attn is installed here")
    assert done.returncode == 3, done.stdout
    assert "nothing was measured" in done.stdout and "no problems" not in done.stdout
