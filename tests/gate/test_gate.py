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
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Allowance, Finding, Problem, Skip
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Report, merge
from attncheck.core.results.gate import CHECKS, Check, GateSection, Stage
from attncheck.core.results.lint import LintSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.verdicts import MeasuredOn, Run, Verdict
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.doctor.engine import make_finding_by_code
from attncheck.gate import baseline, checks, deadline
from attncheck.gate import run as gate
from attncheck.gate.policy import Config
from attncheck.report import document
from attncheck.workers.execution import ExecutionTarget
from tests.snapshots import h200, laptop

BENCH = ExecutionTarget("python")
ALL = CHECKS
LAUNCH = Source("run.sh", "", "shell")


def finding(code: str, message: str = "message", subject: str = "it") -> Finding:
    return make_finding_by_code(code, Problem(message, (), (), subject))


def report(*findings: Finding, **fields: Any) -> Report:
    section = ParitySection(**fields)
    return Report("parity", laptop(), findings, sections={"parity": section} if fields else {})


def stages(found: Report) -> tuple[Stage, ...]:
    section = found.section(GateSection)
    assert section is not None
    return section.stages


def quiet(text: str) -> None:
    """Say nothing."""


Answers = dict[Check, Callable[[float], Iterator[Report]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return the answers of the checks, to be planted; one that is not planted finds nothing."""
    planted: Answers = {}
    blank = lambda rest: iter([report()])
    monkeypatch.setattr(checks.Asking, "reports", lambda self, check, rest: planted.get(check, blank)(rest))
    monkeypatch.setattr(checks.Asking, "snapshot", lambda self: laptop())
    return planted


def run(asked: Config, *sources: Source, date: str = "2026-11-21") -> Report:
    return gate.run(asked, BENCH, quiet, sources, date=date)


def outcomes(found: Report) -> list[tuple[str, str]]:
    return [(stage.check, stage.outcome) for stage in stages(found)]


def found_by(*findings: Finding) -> Callable[[float], Iterator[Report]]:
    return lambda rest: iter([report(*findings)])


def raising(error: BaseException, *first: Report) -> Callable[[float], Iterator[Report]]:
    def answer(rest: float) -> Iterator[Report]:
        yield from first
        raise error

    return answer


@pytest.mark.parametrize(
    ("asked", "sources", "expected"),
    [
        (Config(), (), ("doctor", "parity")),
        (Config(), (LAUNCH,), ("doctor", "lint", "parity")),
        (Config(target="h100x8"), (LAUNCH,), ("doctor", "lint")),
        (Config(target="h100x8", checks=("parity",)), (), ("parity",)),
        (Config(checks=("smoke", "doctor")), (LAUNCH,), ("doctor", "smoke")),
        (Config(checks=("bench",)), (Source(COMMAND, ""),), ("lint", "bench")),
    ],
)
def test_what_is_asked(asked: Config, sources: tuple[Source, ...], expected: tuple[str, ...]) -> None:
    assert gate.checks(asked, sources) == expected


def test_checks_run_in_order_and_all_findings_are_in_one_report(answers: Answers) -> None:
    answers["parity"] = found_by(finding("ATN601"))
    answers["doctor"] = found_by(finding("ATN211"), finding("ATN601"))
    found = run(Config(checks=("doctor", "parity", "bench")))
    assert outcomes(found) == [("doctor", "found"), ("parity", "found"), ("bench", "clean")]
    assert [one.code for one in found.findings] == ["ATN601", "ATN211"]
    assert found.command == "gate"


@pytest.mark.parametrize(
    ("asked", "codes", "stages", "code"),
    [
        (Config(), ("ATN101",), (), 1),
        (Config(), ("ATN211",), (), 0),
        (Config(fail_on="warning"), ("ATN211",), (), 1),
        (Config(fail_on="never"), ("ATN101",), (), 0),
        (Config(), (), (Stage("parity", "unanswered"),), 3),
        (Config(), (), (Stage("parity", "left out", reason=gate.LATE),), 3),
        (Config(), ("ATN101",), (Stage("parity", "unanswered"),), 1),
        (Config(fail_on="never"), ("ATN101",), (Stage("parity", "left out"),), 3),
        (Config(), (), (Stage("lint", "unanswered"), Stage("parity", "clean")), 0),
        (Config(checks=("lint",)), (), (Stage("lint", "unanswered"),), 3),
        (Config(), (), (Stage("doctor", "unanswered", reason=gate.INTERRUPTED),), 130),
    ],
)
def test_exit_code(asked: Config, codes: tuple[str, ...], stages: tuple[Stage, ...], code: int) -> None:
    judged = report(*map(finding, codes)).with_section(GateSection(stages))
    assert gate.exit_code(judged, asked) == code


def test_what_the_policy_and_the_baseline_let_pass_does_not_fail(answers: Answers, tmp_path: Path) -> None:
    path = str(tmp_path / "known.json")
    baseline.record(report(finding("ATN102")), path, "2026-11-20")
    answers["doctor"] = found_by(finding("ATN101"), finding("ATN102"))
    allowed = Allowance("ATN101", "why", "2026-11-21")
    asked = Config(checks=("doctor",), allowances=(allowed,), baseline=path)
    found = run(asked)
    assert found.findings == () and gate.exit_code(found, asked) == 0
    assert outcomes(found) == [("doctor", "clean")]
    assert [one.code for one in (*found.allowed, *found.baselined)] == ["ATN101", "ATN102"]
    late = run(asked, date="2026-11-22")
    assert [one.code for one in late.findings] == ["ATN101", "ATN904"] and gate.exit_code(late, asked) == 1
    assert outcomes(late) == [("doctor", "found")]


def test_an_unanswered_check_keeps_what_it_had_and_the_others_run(answers: Answers) -> None:
    answers["parity"] = raising(Unanswered("ranks did not meet"), report(finding("ATN601")))
    answers["doctor"] = raising(BadUsage("no such case"), report(finding("ATN211")))
    found = run(Config(checks=("doctor", "parity", "smoke")))
    assert outcomes(found) == [("doctor", "unanswered"), ("parity", "unanswered"), ("smoke", "clean")]
    assert [stage.reason for stage in stages(found)] == ["no such case", "ranks did not meet", ""]
    assert [one.code for one in found.findings] == ["ATN601", "ATN211"]


def test_bad_usage_before_any_answer_is_bad_usage(answers: Answers) -> None:
    answers["doctor"] = raising(BadUsage("no such interpreter"))
    with pytest.raises(BadUsage, match="no such interpreter"):
        run(Config(checks=("doctor", "parity")))


def test_cases_that_the_budget_left_out_are_no_clean_answer(answers: Answers) -> None:
    answers["parity"] = lambda rest: iter([report(measured_on=MeasuredOn("cpu", not_reached=3))])
    found = run(Config(checks=("parity",)))
    assert stages(found)[0].outcome == "unanswered"
    assert stages(found)[0].reason == "3 cases not reached within the budget"
    assert gate.exit_code(found, Config(checks=("parity",))) == 3


def test_an_interrupt_keeps_what_was_answered(answers: Answers) -> None:
    answers["doctor"] = found_by(finding("ATN211"))
    answers["parity"] = raising(KeyboardInterrupt(), report(finding("ATN601")))
    asked = Config(checks=("doctor", "parity", "bench"), fail_on="never")
    found = run(asked)
    assert outcomes(found) == [("doctor", "found"), ("parity", "unanswered"), ("bench", "left out")]
    assert len(found.findings) == 2 and gate.exit_code(found, asked) == 130


def test_the_budget_cuts_a_check_and_leaves_the_rest_out(answers: Answers) -> None:
    def slow(rest: float) -> Iterator[Report]:
        yield report(finding("ATN211"))
        time.sleep(30)

    answers["determinism"] = slow
    began = time.monotonic()
    found = run(Config(checks=("determinism", "bench"), budget=0.5))
    assert time.monotonic() - began < 10
    assert [stage.reason for stage in stages(found)] == [gate.CUT, gate.LATE]
    assert outcomes(found) == [("determinism", "unanswered"), ("bench", "left out")]
    assert [one.code for one in found.findings] == ["ATN211"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_check_gets_at_most_the_rest(answers: Answers) -> None:
    given: list[float] = []

    def answer(rest: float) -> Iterator[Report]:
        given.append(rest)
        yield report()

    answers["parity"] = answer
    run(Config(checks=("parity",), budget=7.0))
    run(Config(checks=("parity",)))
    assert 6.0 < given[0] <= 7.0 and given[1] == float("inf")


def test_a_deadline_tells_itself_from_a_users_interrupt() -> None:
    with pytest.raises(deadline.OutOfTime), deadline.deadline(0.05):
        time.sleep(5)
    with pytest.raises(KeyboardInterrupt), deadline.deadline(5.0):
        signal.raise_signal(signal.SIGINT)
    with deadline.deadline(0.2):
        pass
    time.sleep(0.3)


def broken(snapshot: Snapshot, module: str) -> Snapshot:
    assert isinstance(snapshot.imports, Known)
    others = tuple(one for one in snapshot.imports.value if one.module != module)
    return replace(snapshot, imports=Known((*others, ImportOutcome(module, "raised", 1.0, "ImportError", "no"))))


FLASH = Plan(attn_implementation="flash_attention_2")
TORCH = finding("ATN102", "torch 2.11.0 cannot be imported")
HIDDEN = replace(h200(), devices=Absent("no GPU is visible"))


@pytest.mark.parametrize("check", ["parity", "determinism", "smoke", "bench"])
def test_nothing_is_measured_without_torch(check: Check) -> None:
    for snapshot in (broken(h200(), "torch"), replace(h200(), torch=Absent("torch is not installed"))):
        because = gate.barrier(check, Config(), snapshot, (finding("ATN211"), TORCH), Plan())
        assert because == "ATN102: torch 2.11.0 cannot be imported"
    assert gate.barrier(check, Config(), broken(h200(), "torch"), (), Plan()) == "torch cannot be imported"
    assert gate.barrier(check, Config(), h200(), (TORCH,), Plan()) == ""


@pytest.mark.parametrize("check", ["doctor", "lint"])
def test_judging_is_never_stopped(check: Check) -> None:
    assert gate.barrier(check, Config(device="cuda"), broken(HIDDEN, "torch"), (TORCH,), FLASH) == ""


def test_a_gpu_that_the_policy_asks_for() -> None:
    asked = Config(device="cuda")
    assert gate.barrier("parity", asked, HIDDEN, (), Plan()) == "the policy asks for a GPU, and none is visible here"
    hidden = finding("ATN213", "CUDA_VISIBLE_DEVICES hides all GPUs")
    assert gate.barrier("parity", asked, HIDDEN, (hidden,), Plan()).startswith("ATN213: CUDA_VISIBLE_DEVICES")
    assert gate.barrier("parity", Config(), HIDDEN, (), Plan()) == ""
    assert gate.barrier("parity", asked, h200(), (), Plan()) == ""
    assert gate.barrier("parity", asked, replace(h200(), devices=Absent(NOT_ASKED)), (), Plan()) == ""


def test_smoke_needs_the_packages_of_its_plan_and_parity_does_not() -> None:
    no_flash = broken(h200(), "flash_attn")
    abi = finding("ATN104", "flash-attn 2.8.3 was built for another torch")
    assert gate.barrier("smoke", Config(), no_flash, (abi,), FLASH).startswith("ATN104: flash-attn 2.8.3")
    assert gate.barrier("smoke", Config(), no_flash, (abi,), Plan(attn_implementation="sdpa")) == ""
    assert gate.barrier("parity", Config(), no_flash, (abi,), FLASH) == ""
    assert gate.barrier("smoke", Config(), broken(h200(), "transformers"), (), Plan()) != ""
    assert gate.barrier("bench", Config(), broken(h200(), "transformers"), (), Plan()) == ""


def test_no_other_finding_stops_anything() -> None:
    others = tuple(map(finding, ("ATN440", "ATN570", "ATN140", "ATN601", "ATN206")))
    for check in CHECKS:
        assert gate.barrier(check, Config(device="cuda"), h200(), others, FLASH) == ""


def test_a_stopped_check_says_which_finding_stopped_it(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctor(rest: float) -> Iterator[Report]:
        yield report(TORCH)

    answers["doctor"] = doctor
    monkeypatch.setattr(checks.Asking, "looked", True, raising=False)
    monkeypatch.setattr(checks.Asking, "__init__", _looked(checks.Asking.__init__))
    monkeypatch.setattr(checks.Asking, "snapshot", lambda self: broken(laptop(), "torch"))
    found = run(Config(checks=("doctor", "lint", "parity", "smoke")), LAUNCH)
    assert outcomes(found) == [("doctor", "found"), ("lint", "clean"), ("parity", "left out"), ("smoke", "left out")]
    assert stages(found)[2].reason == "ATN102: torch 2.11.0 cannot be imported"
    assert gate.exit_code(found, Config(fail_on="never")) == 3


def _looked(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: checks.Asking, *words: Any) -> None:
        init(self, *words)
        self.looked = True

    return made


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Config(checks=("lint",), file="attncheck.toml"), "attncheck.toml: lint is asked for, and `launch` names no"),
        (Config(select=("XYZ",)), "no rule's code starts with 'XYZ'"),
        (Config(min_efficiency=0.5), "min-efficiency is that of a ring: say ring-size too"),
        (Config(target="h1000x8"), "--target 'h1000x8'"),
        (Config(baseline="/no/such.json"), "cannot read the baseline /no/such.json"),
        (Config(launch=("/no/such.sh",)), "/no/such.sh"),
    ],
)
def test_a_policy_that_cannot_be_asked_is_one_line(asked: Config, says: str) -> None:
    with pytest.raises(BadUsage) as caught:
        gate.run(asked, BENCH, quiet)
    assert says in str(caught.value)


def test_reports_are_merged_without_doubles() -> None:
    case = Case("dense", (8,), (8,))
    runs, verdict = Run("sdpa", case, "ok"), Verdict("parity", "sdpa", "dense", "dense", "pass", "")
    on = MeasuredOn("cpu", "x86", "2.13", seconds=2.0, not_reached=1)
    first = replace(
        report(finding("ATN211"), measured_on=on, runs=(runs,), verdicts=(verdict,)),
        passed=("ATN101", "ATN140"),
        skips=(Skip("ATN102", "n", "r"), Skip("ATN103", "n", "r")),
    )
    later = MeasuredOn("cpu", "x86", "2.13", seconds=1.5)
    second = replace(
        report(finding("ATN211"), finding("ATN140"), measured_on=later, runs=(replace(runs, backend="eager"),)),
        passed=("ATN101", "ATN102"),
    )
    second = second.with_section(LintSection((LintedLaunch(Job("trl", "1.0", "sft")),)))
    found = merge("gate", laptop(), [first, second])
    assert [one.code for one in found.findings] == ["ATN140", "ATN211"]
    assert found.passed == ("ATN101", "ATN102")
    assert [skip.code for skip in found.skips] == ["ATN103"]
    parity, lint = found.section(ParitySection), found.section(LintSection)
    assert parity is not None and lint is not None and found.section(GateSection) is None
    assert [one.backend for one in parity.runs] == ["sdpa", "eager"]
    assert (found.device.seconds, found.device.not_reached, found.command) == (3.5, 1, "gate")
    assert len(lint.launches) == 1
    assert document.loads(document.dumps(found)) == found


def test_doctor_asks_each_model_and_the_report_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real gate over files alone: two models, one of which cannot be read, judged for a target."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    asked = Config(checks=("doctor",), models=("good", "bad"), target="cpu", select=("ATN301", "ATN101"))
    found = gate.run(asked, ExecutionTarget(sys.executable), quiet, date="2026-11-21")
    assert [one.code for one in found.findings] == ["ATN301"]
    assert "ATN101" in found.passed
    assert gate.exit_code(found, asked) == 1
