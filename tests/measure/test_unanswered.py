"""Nothing measured is not "no problems": such a report says so in every format, and ends with 3."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from attncheck.cli.output import exit_code
from attncheck.core.cases import Case
from attncheck.core.io.errors import Interrupted
from attncheck.core.plan import Plan
from attncheck.core.report import MeasuredSection, Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, RingTiming, Stopwatch
from attncheck.core.results.smoke import CheckResult, PlanRun, SmokeSection
from attncheck.core.results.timings import Timing
from attncheck.core.verdicts import BackendState, MeasuredOn, Outcome, Repeats, Run, judge_run
from attncheck.gate.policy import Policy
from attncheck.measure import parity
from attncheck.report.formats import load_format
from attncheck.smoke.trials import failed_checks
from tests import snapshots as s

CASE = Case("dense", (128,), (128,), name="dense-128")
OUT_OF_TIME = "ran out of time twice, the second time alone, after 180 s: not judged"


def make_section(command: str, *outcomes: Outcome, reason: str = "no luck") -> MeasuredSection:
    """Return the section of a command whose measurements came out so."""
    device = MeasuredOn("cpu")
    if command == "parity":
        runs = tuple(Run("eager", CASE, outcome, reason) for outcome in outcomes)
        return ParitySection(device, (), tuple(map(judge_run, runs)), runs)
    if command == "determinism":
        return DeterminismSection(
            device, repeats=tuple(Repeats("eager", CASE, "default", outcome, reason) for outcome in outcomes)
        )
    if command == "bench":
        timings = tuple(Timing("eager", CASE, "forward", "default", outcome, reason) for outcome in outcomes)
        return BenchSection(device, timings=timings)
    if command == "ring":
        watch = Stopwatch(1.0, 1.0, 1.0, 0.01, 9, 0, 1.0)
        rows = [RingTiming("ring_flash_attn", "batch", "forward", 2, 256, 0, o, reason, watch) for o in outcomes]
        return RingSection(device, timings=(replace(rows[0], backend=LOCAL_FLASH, outcome="ok"), *rows))
    results = tuple(CheckResult("padding", outcome, reason) for outcome in outcomes)
    return SmokeSection(device, plan_runs=(PlanRun("llama", Plan(), results),))


def make_report(section: MeasuredSection, **fields: Any) -> Report:
    command = "bench" if section.name == "ring" else section.name
    return Report(command, s.laptop(), sections={section.name: section}, **fields)


COMMANDS = ("parity", "determinism", "bench", "ring", "smoke")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("outcome", ["refused", "skipped", "out_of_memory", "out_of_time"])
def test_nothing_measured_ends_with_3_and_says_why(command: str, outcome: Outcome) -> None:
    report = make_report(make_section(command, outcome, outcome))
    assert exit_code(report, Policy()) == 3
    (question,) = report.unanswered
    assert question.reason.startswith("nothing was measured: 2 × ") and question.reason.endswith("no luck")


@pytest.mark.parametrize("command", ["bench", "ring"])
@pytest.mark.parametrize("outcome", ["raised", "died", "timed_out"])
def test_a_benchmark_of_which_every_row_raised_timed_nothing(command: str, outcome: Outcome) -> None:
    report = make_report(make_section(command, outcome, outcome))
    assert exit_code(report, Policy()) == 3
    assert report.unanswered[0].reason == f"nothing was measured: 2 × {outcome}: no luck"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_measured_in_part_is_an_answer_unless_time_ran_out(command: str) -> None:
    for outcome in ("ok", "refused", "skipped"):
        assert exit_code(make_report(make_section(command, "ok", outcome)), Policy()) == 0
    late = make_report(make_section(command, "ok", "out_of_time", "ok"))
    assert exit_code(late, Policy()) == 3
    assert late.unanswered[0].reason.startswith("1 of 3 not judged: ")


@pytest.mark.parametrize("command", ["parity", "determinism", "smoke"])
def test_a_fault_is_an_answer(command: str) -> None:
    assert make_report(make_section(command, "raised", "refused")).unanswered == ()


def test_an_interrupted_report_says_what_is_missing_and_ends_with_130() -> None:
    section = make_section("parity", "ok")
    assert isinstance(section, ParitySection)
    device = MeasuredOn("cpu", not_reached=1075, interrupted=True)
    report = make_report(replace(section, measured_on=device))
    assert exit_code(report, Policy()) == Interrupted.exit_code == 130
    assert report.unanswered[0].reason == "interrupted before its end: 1075 measurements are missing"


FORMATS = {  # format: what it says of a report in which nothing was measured, and never says
    "text": ("unanswered     parity: nothing was measured: no luck", "no problems"),
    "markdown": ("parity: nothing was measured: no luck", "no problems"),
    "html": ("parity: nothing was measured: no luck", "No problems"),
    "github": ("nothing was measured · unanswered: parity, parity: nothing was measured: no luck", "no problems"),
    "junit": (
        '<error message="nothing was measured: no luck"',
        'name="attncheck parity" tests="2" failures="0" errors="0"',
    ),
    "sarif": ("parity: unanswered. nothing was measured: no luck", '"executionSuccessful": true'),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_that_nothing_was_measured(name: str) -> None:
    shown = load_format(name).render(make_report(make_section("parity", "refused")), False)
    said, never_said = FORMATS[name]
    assert said in shown and never_said not in shown
    healthy = load_format(name).render(make_report(make_section("parity", "ok", "refused")), False)
    assert said not in healthy


def test_json_lists_open_questions() -> None:
    report = make_report(make_section("parity", "refused"))
    document = json.loads(load_format("json").render(report, False))
    reason = "nothing was measured: no luck"
    assert document["unanswered"] == [{"name": "parity", "outcome": "unanswered", "reason": reason}]


def test_no_backend_is_blamed_for_a_busy_machine() -> None:
    runs = (Run("eager", CASE, "out_of_time", OUT_OF_TIME), Run("eager", CASE, "timed_out", "it slept"))
    assert parity.make_report(s.laptop(), (), runs[:1], MeasuredOn("cpu")).findings == ()
    states = (BackendState("eager", "", "torch"),)
    only_late = parity.make_report(s.laptop(), states, runs[:1], MeasuredOn("cpu"))
    hung = parity.make_report(s.laptop(), states, runs, MeasuredOn("cpu"))
    assert only_late.findings == () and [finding.code for finding in hung.findings] == ["ATN604"]
    assert "1 of 2 cases" in hung.findings[0].message
    assert judge_run(runs[0]).answer == "lost" and judge_run(runs[0]).budget_ratio == 0.0
    late_check = PlanRun("llama", Plan(), (CheckResult("padding", "out_of_time", OUT_OF_TIME),))
    assert failed_checks(late_check) == ()
