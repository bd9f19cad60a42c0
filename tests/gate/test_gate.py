"""A gate: which checks run, what stops which, one exit code; budget and interrupts keep what was answered."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.cases import Case
from attncheck.core.environment import ImportOutcome
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Allowance, Finding, Problem, Skip
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Report, merge_reports
from attncheck.core.results.gate import CHECKS, Check, GateSection, Stage
from attncheck.core.results.lint import LintSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.core.verdicts import MeasuredOn, Run, Verdict
from attncheck.doctor.engine import make_finding_by_code
from attncheck.gate import baseline, checks
from attncheck.gate import run as gate
from attncheck.gate.policy import Policy
from attncheck.measure import bench, bench_shapes
from attncheck.report import document
from attncheck.workers import deadline
from attncheck.workers.execution import ExecutionTarget
from tests.snapshots import h200, laptop

TARGET = ExecutionTarget("python")
LAUNCH = Source("run.sh", "", "shell")


def make_finding(code: str, message: str = "message", subject: str = "it") -> Finding:
    return make_finding_by_code(code, Problem(message, (), (), subject))


def make_report(*findings: Finding, **fields: Any) -> Report:
    section = ParitySection(**fields)
    return Report("parity", laptop(), findings, sections={"parity": section} if fields else {})


def list_stages(report: Report) -> tuple[Stage, ...]:
    section = report.section(GateSection)
    assert section is not None
    return section.stages


def ignore_progress(text: str) -> None:
    """Show no progress."""


Answers = dict[Check, Callable[[float], Iterator[Report]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return the answers of the checks, to be filled by a test; a check without one finds nothing."""
    answers: Answers = {}
    default_answer = lambda seconds_left: iter([make_report()])
    monkeypatch.setattr(
        checks.CheckRunner, "run", lambda self, check, seconds_left: answers.get(check, default_answer)(seconds_left)
    )
    monkeypatch.setattr(checks.CheckRunner, "snapshot", lambda self: laptop())
    return answers


def run_gate(policy: Policy, *sources: Source, date: str = "2026-11-21") -> Report:
    return gate.run(policy, TARGET, ignore_progress, sources, date=date)


def list_outcomes(report: Report) -> list[tuple[str, str]]:
    return [(stage.check, stage.outcome) for stage in list_stages(report)]


def answer_with(*findings: Finding) -> Callable[[float], Iterator[Report]]:
    return lambda seconds_left: iter([make_report(*findings)])


def answer_raising(error: BaseException, *first: Report) -> Callable[[float], Iterator[Report]]:
    def answer(seconds_left: float) -> Iterator[Report]:
        yield from first
        raise error

    return answer


@pytest.mark.parametrize(
    ("policy", "sources", "expected"),
    [
        (Policy(), (), ("doctor", "parity")),
        (Policy(), (LAUNCH,), ("doctor", "lint", "parity")),
        (Policy(target="h100x8"), (LAUNCH,), ("doctor", "lint")),
        (Policy(target="h100x8", checks=("parity",)), (), ("parity",)),
        (Policy(checks=("smoke", "doctor")), (LAUNCH,), ("doctor", "smoke")),
        (Policy(checks=("bench",)), (Source(COMMAND, ""),), ("lint", "bench")),
    ],
)
def test_what_is_asked(policy: Policy, sources: tuple[Source, ...], expected: tuple[str, ...]) -> None:
    assert gate.select_checks(policy, sources) == expected


def test_checks_run_in_order_and_all_findings_are_in_one_report(answers: Answers) -> None:
    answers["parity"] = answer_with(make_finding("ATN601"))
    answers["doctor"] = answer_with(make_finding("ATN211"), make_finding("ATN601"))
    report = run_gate(Policy(checks=("doctor", "parity", "bench")))
    assert list_outcomes(report) == [("doctor", "found"), ("parity", "found"), ("bench", "clean")]
    assert [finding.code for finding in report.findings] == ["ATN601", "ATN211"]
    assert report.command == "gate"


@pytest.mark.parametrize(
    ("policy", "codes", "stages", "code"),
    [
        (Policy(), ("ATN101",), (), 1),
        (Policy(), ("ATN211",), (), 0),
        (Policy(fail_on="warning"), ("ATN211",), (), 1),
        (Policy(fail_on="never"), ("ATN101",), (), 0),
        (Policy(), (), (Stage("parity", "unanswered"),), 3),
        (Policy(), (), (Stage("parity", "left out", reason=gate.BUDGET_SPENT),), 3),
        (Policy(), ("ATN101",), (Stage("parity", "unanswered"),), 1),
        (Policy(fail_on="never"), ("ATN101",), (Stage("parity", "left out"),), 3),
        (Policy(), (), (Stage("lint", "unanswered"), Stage("parity", "clean")), 0),
        (Policy(checks=("lint",)), (), (Stage("lint", "unanswered"),), 3),
        (Policy(checks=("lint",)), (), (Stage("lint", "not linted"),), 0),
        (Policy(), (), (Stage("doctor", "unanswered", reason=gate.INTERRUPTED),), 130),
    ],
)
def test_exit_code(policy: Policy, codes: tuple[str, ...], stages: tuple[Stage, ...], code: int) -> None:
    judged = make_report(*map(make_finding, codes)).with_section(GateSection(stages))
    assert gate.exit_code(judged, policy) == code


def test_what_the_policy_and_the_baseline_allow_does_not_fail(answers: Answers, tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    baseline.record_baseline(make_report(make_finding("ATN102")), path, "2026-11-20")
    answers["doctor"] = answer_with(make_finding("ATN101"), make_finding("ATN102"))
    allowed = Allowance("ATN101", "why", "2026-11-21")
    policy = Policy(checks=("doctor",), allowances=(allowed,), baseline=path)
    report = run_gate(policy)
    assert report.findings == () and gate.exit_code(report, policy) == 0
    assert list_outcomes(report) == [("doctor", "clean")]
    assert [finding.code for finding in (*report.allowed, *report.baselined)] == ["ATN101", "ATN102"]
    late_report = run_gate(policy, date="2026-11-22")
    assert [finding.code for finding in late_report.findings] == ["ATN101", "ATN904"] and gate.exit_code(
        late_report, policy
    ) == 1
    assert list_outcomes(late_report) == [("doctor", "found")]


def test_an_unanswered_check_keeps_what_it_had_and_the_others_run(answers: Answers) -> None:
    answers["parity"] = answer_raising(Unanswered("ranks did not meet"), make_report(make_finding("ATN601")))
    answers["doctor"] = answer_raising(BadUsage("no such case"), make_report(make_finding("ATN211")))
    report = run_gate(Policy(checks=("doctor", "parity", "smoke")))
    assert list_outcomes(report) == [("doctor", "unanswered"), ("parity", "unanswered"), ("smoke", "clean")]
    assert [stage.reason for stage in list_stages(report)] == ["no such case", "ranks did not meet", ""]
    assert [(finding.code, finding.check) for finding in report.findings] == [
        ("ATN601", "parity"),
        ("ATN211", "doctor"),
    ]


def test_bad_usage_before_any_answer_is_bad_usage(answers: Answers) -> None:
    answers["doctor"] = answer_raising(BadUsage("no such interpreter"))
    with pytest.raises(BadUsage, match="no such interpreter"):
        run_gate(Policy(checks=("doctor", "parity")))


def test_cases_that_the_budget_left_out_are_no_clean_answer(answers: Answers) -> None:
    answers["parity"] = lambda seconds_left: iter([make_report(measured_on=MeasuredOn("cpu", not_reached=3))])
    report = run_gate(Policy(checks=("parity",)))
    assert list_stages(report)[0].outcome == "unanswered"
    assert list_stages(report)[0].reason == "3 cases not reached within the budget"
    assert gate.exit_code(report, Policy(checks=("parity",))) == 3


def test_an_interrupt_keeps_what_was_answered(answers: Answers) -> None:
    answers["doctor"] = answer_with(make_finding("ATN211"))
    answers["parity"] = answer_raising(KeyboardInterrupt(), make_report(make_finding("ATN601")))
    policy = Policy(checks=("doctor", "parity", "bench"), fail_on="never")
    report = run_gate(policy)
    assert list_outcomes(report) == [("doctor", "found"), ("parity", "unanswered"), ("bench", "left out")]
    assert len(report.findings) == 2 and gate.exit_code(report, policy) == 130


def test_the_budget_cuts_a_check_and_leaves_the_rest_out(answers: Answers) -> None:
    def slow(seconds_left: float) -> Iterator[Report]:
        yield make_report(make_finding("ATN211"))
        time.sleep(300)

    answers["determinism"] = slow
    started_at = time.monotonic()
    report = run_gate(Policy(checks=("determinism", "bench"), budget=0.5))
    assert time.monotonic() - started_at < 60
    cut, left_out = [stage.reason for stage in list_stages(report)]
    assert cut == gate.CUT_BY_BUDGET and left_out.startswith(f"{gate.BUDGET_SPENT}: determinism took ")
    assert list_outcomes(report) == [("determinism", "unanswered"), ("bench", "left out")]
    assert [finding.code for finding in report.findings] == ["ATN211"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_decides_most_for_its_time_comes_first_and_speed_last() -> None:
    everything = gate.select_checks(Policy(checks=("bench", "determinism", "smoke", "parity", "doctor")), ())
    assert everything == ("doctor", "parity", "smoke", "determinism", "bench")


def test_a_gate_times_what_a_training_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bench_shapes.Request] = []

    def run_bench(snapshot: Snapshot, request: bench_shapes.Request, *arguments: object) -> Report:
        requests.append(request)
        return make_report()

    monkeypatch.setattr(bench, "run", run_bench)
    monkeypatch.setattr(checks.CheckRunner, "snapshot", lambda self: laptop())
    run_gate(Policy(checks=("bench",)))
    assert [request.passes for request in requests] == [("forward_backward",)]


def test_a_check_gets_at_most_the_rest(answers: Answers) -> None:
    budgets: list[float] = []

    def answer(seconds_left: float) -> Iterator[Report]:
        budgets.append(seconds_left)
        yield make_report()

    answers["parity"] = answer
    run_gate(Policy(checks=("parity",), budget=7.0))
    run_gate(Policy(checks=("parity",)))
    assert 6.0 < budgets[0] <= 7.0 and budgets[1] == float("inf")


def test_a_deadline_tells_itself_from_a_users_interrupt() -> None:
    with pytest.raises(deadline.OutOfTime), deadline.interrupt_after(0.05):
        time.sleep(5)
    with pytest.raises(KeyboardInterrupt), deadline.interrupt_after(5.0):
        signal.raise_signal(signal.SIGINT)
    with deadline.interrupt_after(0.2):
        pass
    time.sleep(0.3)


def with_failed_import(snapshot: Snapshot, module: str) -> Snapshot:
    assert isinstance(snapshot.imports, Known)
    others = tuple(outcome for outcome in snapshot.imports.value if outcome.module != module)
    return replace(snapshot, imports=Known((*others, ImportOutcome(module, "raised", 1.0, "ImportError", "no"))))


FLASH = Plan(attn_implementation="flash_attention_2")
TORCH = make_finding("ATN102", "torch 2.11.0 cannot be imported")
WITHOUT_GPU = replace(h200(), devices=Absent("no GPU is visible"))


@pytest.mark.parametrize("check", ["parity", "determinism", "smoke", "bench"])
def test_nothing_is_measured_without_torch(check: Check) -> None:
    for snapshot in (with_failed_import(h200(), "torch"), replace(h200(), torch=Absent("torch is not installed"))):
        reason = gate.find_blocking_reason(check, Policy(), snapshot, (make_finding("ATN211"), TORCH), Plan())
        assert reason == "ATN102: torch 2.11.0 cannot be imported"
    assert (
        gate.find_blocking_reason(check, Policy(), with_failed_import(h200(), "torch"), (), Plan())
        == "torch cannot be imported"
    )
    assert gate.find_blocking_reason(check, Policy(), h200(), (TORCH,), Plan()) == ""


@pytest.mark.parametrize("check", ["doctor", "lint"])
def test_judging_is_never_stopped(check: Check) -> None:
    assert (
        gate.find_blocking_reason(
            check, Policy(device="cuda"), with_failed_import(WITHOUT_GPU, "torch"), (TORCH,), FLASH
        )
        == ""
    )


def test_a_gpu_that_the_policy_asks_for() -> None:
    policy = Policy(device="cuda")
    assert (
        gate.find_blocking_reason("parity", policy, WITHOUT_GPU, (), Plan())
        == "the policy requires a GPU, but none is visible here"
    )
    hidden_finding = make_finding("ATN213", "CUDA_VISIBLE_DEVICES hides all GPUs")
    assert gate.find_blocking_reason("parity", policy, WITHOUT_GPU, (hidden_finding,), Plan()).startswith(
        "ATN213: CUDA_VISIBLE_DEVICES"
    )
    assert gate.find_blocking_reason("parity", Policy(), WITHOUT_GPU, (), Plan()) == ""
    assert gate.find_blocking_reason("parity", policy, h200(), (), Plan()) == ""
    assert gate.find_blocking_reason("parity", policy, replace(h200(), devices=Absent(NOT_ASKED)), (), Plan()) == ""


def test_smoke_needs_the_packages_of_its_plan_and_parity_does_not() -> None:
    without_flash_attn = with_failed_import(h200(), "flash_attn")
    abi_finding = make_finding("ATN104", "flash-attn 2.8.3 was built for another torch")
    assert gate.find_blocking_reason("smoke", Policy(), without_flash_attn, (abi_finding,), FLASH).startswith(
        "ATN104: flash-attn 2.8.3"
    )
    assert (
        gate.find_blocking_reason(
            "smoke", Policy(), without_flash_attn, (abi_finding,), Plan(attn_implementation="sdpa")
        )
        == ""
    )
    assert gate.find_blocking_reason("parity", Policy(), without_flash_attn, (abi_finding,), FLASH) == ""
    assert gate.find_blocking_reason("smoke", Policy(), with_failed_import(h200(), "transformers"), (), Plan()) != ""
    assert gate.find_blocking_reason("bench", Policy(), with_failed_import(h200(), "transformers"), (), Plan()) == ""


def test_no_other_finding_stops_anything() -> None:
    others = tuple(map(make_finding, ("ATN440", "ATN570", "ATN140", "ATN601", "ATN206")))
    for check in CHECKS:
        assert gate.find_blocking_reason(check, Policy(device="cuda"), h200(), others, FLASH) == ""


def test_a_stopped_check_says_which_finding_stopped_it(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctor(seconds_left: float) -> Iterator[Report]:
        yield make_report(TORCH)

    answers["doctor"] = doctor
    monkeypatch.setattr(checks.CheckRunner, "has_full_snapshot", True, raising=False)
    monkeypatch.setattr(checks.CheckRunner, "__init__", _with_full_snapshot(checks.CheckRunner.__init__))
    monkeypatch.setattr(checks.CheckRunner, "snapshot", lambda self: with_failed_import(laptop(), "torch"))
    report = run_gate(Policy(checks=("doctor", "lint", "parity", "smoke")), LAUNCH)
    assert list_outcomes(report) == [
        ("doctor", "found"),
        ("lint", "clean"),
        ("parity", "left out"),
        ("smoke", "left out"),
    ]
    assert list_stages(report)[2].reason == "ATN102: torch 2.11.0 cannot be imported"
    assert gate.exit_code(report, Policy(fail_on="never")) == 3


def _with_full_snapshot(init: Callable[..., None]) -> Callable[..., None]:
    def initialize(self: checks.CheckRunner, *arguments: Any) -> None:
        init(self, *arguments)
        self.has_full_snapshot = True

    return initialize


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(checks=("lint",), file="attncheck.toml"), "attncheck.toml: lint is requested, and `launch` names no"),
        (Policy(select=("XYZ",)), "no rule's code starts with 'XYZ'"),
        (Policy(min_efficiency=0.5), "min-efficiency applies to a ring: set ring-size too"),
        (Policy(target="h1000x8"), "--target 'h1000x8'"),
        (Policy(baseline="/no/such.json"), "cannot read the baseline /no/such.json"),
        (Policy(launch=("/no/such.sh",)), "/no/such.sh"),
    ],
)
def test_a_policy_that_cannot_be_asked_is_one_line(policy: Policy, message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        gate.run(policy, TARGET, ignore_progress)
    assert message in str(caught.value)


def test_reports_are_merged_without_doubles() -> None:
    case = Case("dense", (8,), (8,))
    run, verdict = Run("sdpa", case, "ok"), Verdict("parity", "sdpa", "dense", "dense", "pass", "")
    first_device = MeasuredOn("cpu", "x86", "2.13", seconds=2.0, not_reached=1)
    first = replace(
        make_report(make_finding("ATN211"), measured_on=first_device, runs=(run,), verdicts=(verdict,)),
        passed=("ATN101", "ATN140"),
        skips=(Skip("ATN102", "n", "r"), Skip("ATN103", "n", "r")),
    )
    later_device = MeasuredOn("cpu", "x86", "2.13", seconds=1.5)
    second = replace(
        make_report(
            make_finding("ATN211"),
            make_finding("ATN140"),
            measured_on=later_device,
            runs=(replace(run, backend="eager"),),
        ),
        passed=("ATN101", "ATN102"),
    )
    second = second.with_section(LintSection((LintedLaunch(Job("trl", "1.0", "sft")),)))
    report = merge_reports("gate", laptop(), [first, second])
    assert [finding.code for finding in report.findings] == ["ATN140", "ATN211"]
    assert report.passed == ("ATN101", "ATN102")
    assert [skip.code for skip in report.skips] == ["ATN103"]
    parity, lint = report.section(ParitySection), report.section(LintSection)
    assert parity is not None and lint is not None and report.section(GateSection) is None
    assert [run.backend for run in parity.runs] == ["sdpa", "eager"]
    assert (report.device.seconds, report.device.not_reached, report.command) == (3.5, 1, "gate")
    assert len(lint.launches) == 1
    assert document.loads(document.dumps(report)) == report


def test_doctor_asks_each_model_and_the_report_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real gate over files alone: two models, one of which cannot be read, judged for a target."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    policy = Policy(checks=("doctor",), models=("good", "bad"), target="cpu", select=("ATN301", "ATN101"))
    report = gate.run(policy, ExecutionTarget(sys.executable), ignore_progress, date="2026-11-21")
    assert [finding.code for finding in report.findings] == ["ATN301"]
    assert "ATN101" in report.passed
    assert gate.exit_code(report, policy) == 1
