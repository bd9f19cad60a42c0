"""Levels of a gate: what each runs, what it leaves of a policy, and that its promised length is kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import COMMAND, Source
from attncheck.core.report import Report
from attncheck.core.results.gate import CHECKS, Check
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.doctor.probes.collect import LANES
from attncheck.gate import cache_key, checks, levels
from attncheck.gate import run as gate
from attncheck.gate.policy import Policy, load_policy, override_policy
from attncheck.measure import determinism, parity
from attncheck.workers.execution import ExecutionTarget
from tests.conftest import Run
from tests.gate.test_gate import Answers, answers, ignore_progress, list_outcomes, list_stages, make_report
from tests.snapshots import h200, laptop

__all__ = ["answers"]
LAUNCH = Source("run.sh", "", "shell")
TARGET = ExecutionTarget(sys.executable, "cpu")


@pytest.mark.parametrize(
    ("policy", "sources", "expected"),
    [
        (Policy(level=1), (), ("doctor",)),
        (Policy(level=1), (LAUNCH,), ("doctor", "lint")),
        (Policy(level=1), (Source(COMMAND, ""),), ("doctor", "lint")),
        (Policy(level=2), (LAUNCH,), ("doctor", "lint", "parity", "determinism")),
        (Policy(level=3), (LAUNCH,), CHECKS),
        (Policy(level=3, target="h100x8"), (LAUNCH,), ("doctor", "lint")),
        (Policy(level=1, checks=("doctor", "parity", "smoke")), (), ("doctor",)),
        (Policy(level=2, checks=("doctor", "parity", "smoke")), (LAUNCH,), ("doctor", "parity")),
        (Policy(level=3, checks=("doctor", "smoke")), (LAUNCH,), ("doctor", "smoke")),
    ],
)
def test_a_level_is_a_ready_policy_and_restricts_one_that_names_checks(
    policy: Policy, sources: tuple[Source, ...], expected: tuple[Check, ...]
) -> None:
    assert gate.select_checks(levels.apply_level(policy), sources) == expected


def test_each_level_does_all_that_the_one_below_does_and_takes_longer() -> None:
    for number in (1, 2):
        lower, higher = levels.LEVELS[number], levels.LEVELS[number + 1]
        assert set(lower.checks) < set(higher.checks) and set(lower.lanes) <= set(higher.lanes)
        assert (lower.seconds < higher.seconds and lower.cpu_repeats <= higher.cpu_repeats) or number == 1
    assert levels.LEVELS[1].lanes == ("static",) and levels.LEVELS[2].lanes == LANES


@pytest.mark.parametrize(
    ("policy", "suite", "budget"),
    [
        (Policy(), "quick", 0.0),
        (Policy(suite="full", budget=600.0), "full", 600.0),
        (Policy(level=1), "quick", 30.0),
        (Policy(level=2), "quick", 180.0),
        (Policy(level=2, suite="full", budget=600.0), "quick", 180.0),
        (Policy(level=2, budget=20.0), "quick", 20.0),
        (Policy(level=3), "standard", 1800.0),
        (Policy(level=3, suite="quick", budget=7200.0), "quick", 7200.0),
        (Policy(level=3, suite="full"), "full", 1800.0),
    ],
)
def test_the_suite_and_the_budget_that_a_level_leaves(policy: Policy, suite: str, budget: float) -> None:
    applied = levels.apply_level(policy)
    assert (applied.suite, applied.budget, applied.level) == (suite, budget, policy.level)


def test_a_level_that_leaves_no_check_is_an_error_and_so_is_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="level 1 runs doctor, lint, and the policy requests smoke, bench: no check"):
        levels.apply_level(Policy(level=1, checks=("smoke", "bench")))
    for text in ("level = 4", "level = 0", "level = true", "level = '1'"):
        (tmp_path / "attncheck.toml").write_text(text)
        with pytest.raises(BadUsage, match=r"level: .* is not a whole number from 1 to 3"):
            load_policy(tmp_path)
    (tmp_path / "attncheck.toml").write_text("level = 2")
    assert load_policy(tmp_path).level == 2
    assert override_policy(load_policy(tmp_path), {"level": 1}).level == 1


def test_what_the_checks_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real requests of parity, determinism and doctor, caught where they would begin to measure."""
    requests: dict[str, Any] = {}

    def catch(name: str) -> Any:
        def run(snapshot: Snapshot, request: Any, target: ExecutionTarget, report_progress: Any) -> Report:
            requests[name] = request
            return make_report()

        return run

    def collect(python: Any, lanes: Any, *rest: Any) -> Snapshot:
        requests["lanes"] = lanes
        return laptop()

    monkeypatch.setattr(parity, "run", catch("parity"))
    monkeypatch.setattr(determinism, "run", catch("determinism"))
    monkeypatch.setattr(checks, "collect_snapshot", collect)
    asked = {}
    for level in (0, 1, 2, 3):
        requests.clear()
        policy = levels.apply_level(Policy(level=level))
        wanted = tuple(c for c in gate.select_checks(policy, ()) if c in ("doctor", "parity", "determinism"))
        gate.run(replace(policy, checks=wanted), TARGET, ignore_progress, (), date="2026-11-21")
        suite, repeats = (requests.get(name) for name in ("parity", "determinism"))
        asked[level] = (requests["lanes"], suite and suite.suite, repeats and repeats.repeats)
    assert asked == {
        0: (LANES, "quick", None),
        1: (("static",), None, None),
        2: (LANES, "quick", 3),
        3: (LANES, "standard", 6),
    }


def test_the_promise_is_kept_whatever_a_check_does(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a check that never ends, under a policy that would give it an hour."""

    def endless(seconds_left: float) -> Iterator[Report]:
        yield make_report()
        time.sleep(300)

    answers["parity"] = endless
    monkeypatch.setitem(levels.LEVELS, 2, replace(levels.LEVELS[2], seconds=0.5))
    policy = levels.apply_level(Policy(level=2, budget=3600.0))
    began = time.monotonic()
    report = gate.run(policy, TARGET, ignore_progress, (), date="2026-11-21")
    assert time.monotonic() - began < 60
    assert list_outcomes(report) == [("doctor", "clean"), ("parity", "unanswered"), ("determinism", "left out")]
    *reasons, left_out = [stage.reason for stage in list_stages(report)]
    assert reasons == ["", gate.CUT_BY_BUDGET]
    assert re.fullmatch(rf"{gate.BUDGET_SPENT}: parity took \d+ of 0.5 s", left_out), "what took the time is named"
    assert gate.exit_code(report, policy) == 3


def test_a_kept_answer_is_that_of_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_key, "collect_with_stamps", lambda *arguments: (h200(), "stamps"))
    # The same checks, suite and budget: the level alone tells them apart.
    policies = [Policy(level=level, checks=("doctor",), suite="quick", budget=9.0) for level in (0, 1, 2, 3)]
    keys = {cache_key.answer_key(levels.apply_level(p), TARGET, ("true",), "2026-11-21") for p in policies}
    assert len(keys) == 4


# The commands as a user meets them.


def test_level_1_reads_files_and_says_how_long_it_took(attncheck: Run) -> None:
    done = attncheck("gate", "--level", "1", "--fail-on", "never", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert [stage["check"] for stage in report["gate"]["stages"]] == ["doctor"]
    assert (report["gate"]["level"], report["gate"]["promised_seconds"]) == (1, 30.0)
    assert all(NOT_ASKED in json.dumps(report["snapshot"][fact]) for fact in ("imports", "devices"))
    assert {check for check in ("parity", "determinism", "smoke", "bench") if check in report} == set()
    text = attncheck("gate", "--level", "1", "--fail-on", "never").stdout
    assert text.startswith("gate: ") and re.search(r"^level 1 · [\d.]+ s of at most 30 s$", text, re.MULTILINE)


def test_level_2_ends_when_its_time_is_up_and_says_what_did_not_fit(attncheck: Run, marker: str) -> None:
    pytest.importorskip("torch")
    arguments = ("--level", "2", "--budget", "3", "--device", "cpu", "--fail-on", "never", "--format", "json")
    done = attncheck("gate", *arguments, timeout=200)
    assert done.returncode == 3, done.stderr
    stages = {stage["check"]: stage for stage in json.loads(done.stdout)["gate"]["stages"]}
    assert list(stages) == ["doctor", "parity", "determinism"]
    assert stages["determinism"]["outcome"] == "left out"
    assert stages["determinism"]["reason"].startswith(f"{gate.BUDGET_SPENT}: ")
    assert json.loads(done.stdout)["gate"]["promised_seconds"] == 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--level", "4"), "'--level'"),
        (("--level", "1", "--checks", "bench"), "level 1 runs doctor, lint, and the policy requests bench"),
    ],
)
def test_a_wrong_level_is_one_line(attncheck: Run, arguments: tuple[str, ...], message: str) -> None:
    done = attncheck("gate", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_keeps_one_answer_for_each_level(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text('checks = ["doctor"]\ntarget = "cpu"\nselect = ["ATN101"]\n')
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def count_answers(*options: str) -> int:
        command = [sys.executable, "-m", "attncheck", "run", *options, "--", "true"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return len(list((tmp_path / "cache" / "attncheck").glob("answer-*.json")))

    levels_in_turn = ((), ("--level", "1"), ("--level", "2"), ("--level", "1"))
    assert [count_answers(*options) for options in levels_in_turn] == [1, 2, 3, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("level", [2, 3])
def test_every_level_is_run_to_its_end_within_its_promise(attncheck: Run, marker: str, level: int) -> None:
    pytest.importorskip("torch")
    seconds = levels.LEVELS[level].seconds
    arguments = ("--level", str(level), "--device", "cpu", "--fail-on", "never", "--format", "json")
    report = json.loads(attncheck("gate", *arguments, timeout=seconds + 120).stdout)
    stages = report["gate"]["stages"]
    print({stage["check"]: stage["seconds"] for stage in stages})
    assert sum(stage["seconds"] for stage in stages) < seconds + 60
    assert {stage["check"] for stage in stages} == set(levels.LEVELS[level].checks) - {"lint"}
    assert all(stage["outcome"] in ("clean", "found") for stage in stages), stages
