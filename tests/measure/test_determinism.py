"""`attncheck determinism` as a user meets it, and its judging."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.attention.backend import Device, Outputs
from attncheck.attention.backends import sdpa_math
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import BackendState, Difference, MeasuredOn, Mode, Repeats, Score
from attncheck.measure import determinism
from attncheck.measure.worker.repeats import Repeater
from attncheck.report.schema import make_report_schema
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import default_slots
from tests.conftest import Run
from tests.plugins import write_backend
from tests.snapshots import laptop

MODES: tuple[Mode, Mode] = ("default", "deterministic")
CASE = with_name(Case("repeats", (512,), (512,)))
SAME = tuple(Difference(name, 1, 0, 0.0, 0, 1000) for name in ("out", "dq", "dk", "dv"))
VARYING = (SAME[0], Difference("dq", 17, 4, 0.001, 30, 1000, 7, 1), *SAME[2:])
PLAIN = Repeats("sdpa_flash", CASE, "default", "ok", repeats=32, under_load=16, differences=SAME, call_ms=2.0)
STRICT = replace(
    PLAIN, mode="deterministic", deterministic_switch="torch.use_deterministic_algorithms(True)", call_ms=3.0
)


def list_findings(*repeats: Repeats) -> list[tuple[str, str]]:
    states = (BackendState("sdpa_flash", "", "torch"),)
    report = determinism.make_report(laptop(), states, repeats, MeasuredOn("cuda"))
    return [
        (finding.code, json.dumps([finding.evidence, [fix.proven for fix in finding.fixes]]))
        for finding in report.findings
    ]


def test_what_is_reproducible_is_no_finding() -> None:
    assert list_findings(PLAIN, STRICT) == []


def test_a_varying_gradient_is_told_with_the_switch_that_fixes_it_and_its_cost() -> None:
    ((code, text),) = list_findings(replace(PLAIN, differences=VARYING), STRICT)
    assert code == "ATN711"
    assert "dq: 17 different results in 32 calls, first at call 4" in text
    assert "32 calls with identical bits, 16 under load, 1.50 \\u00d7 the time" in text


def test_a_switch_that_does_not_hold_is_an_error() -> None:
    codes = [
        code for code, _ in list_findings(replace(PLAIN, differences=VARYING), replace(STRICT, differences=VARYING))
    ]
    assert codes == ["ATN712", "ATN711"]


@pytest.mark.parametrize(("z_rms", "answer"), [(1.99, "pass"), (2.01, "warn"), (5.9, "warn"), (6.1, "fail")])
def test_values_are_judged_by_the_budget_of_parity(z_rms: float, answer: str) -> None:
    score = Score("dq", z_rms, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0)
    assert determinism.judge_repeats(replace(PLAIN, scores=(score,))).answer == answer


def test_a_mode_whose_bits_repeat_and_whose_values_are_wrong_is_wrong_and_no_fix() -> None:
    def halved(inputs: Inputs, deterministic: bool) -> Outputs:
        outputs = sdpa_math.BACKEND.run(inputs, False)
        assert outputs.dq is not None
        return replace(outputs, dq=outputs.dq * 0.5) if deterministic else outputs

    backend = replace(sdpa_math.BACKEND, name="sdpa_flash", run=halved, deterministic="deterministic=True")
    repeater = Repeater(backend, Device("cpu"), 3)
    default, strict = (repeater.measure(with_name(Case("repeats", (300,), (300,))), mode) for mode in MODES)
    assert determinism.judge_repeats(default).answer == "pass"
    assert determinism.judge_repeats(strict).reason.startswith("in deterministic mode, dq ")
    varying = replace(default, differences=VARYING)
    states = (BackendState("sdpa_flash", "", "torch"),)
    wrong, varies = determinism.make_report(laptop(), states, (varying, strict), MeasuredOn("cpu")).findings
    assert (wrong.code, varies.code) == ("ATN601", "ATN711")
    assert wrong.message == "sdpa_flash is wrong with deterministic=True"
    assert not varies.fixes


def test_warn_only_that_does_not_help_is_said() -> None:
    varying = replace(PLAIN, differences=VARYING)
    ((_, text),) = list_findings(varying, replace(varying, mode="warn_only", deterministic_switch="warn_only=True"))
    assert "warn_only=True does not help" in text


def test_a_backend_that_compiles_is_left_out_on_a_cpu_unless_it_is_named() -> None:
    states = [BackendState(name, name, "torch") for name in ("eager", "flex_attention")]
    for device, names, left in (("cpu", (), 1), ("cpu", ("flex_attention",), 2), ("cuda", (), 2)):
        target = ExecutionTarget("python", device)
        assert len(determinism.select_measured(states, determinism.Request(names), target)) == left


def test_a_batch_that_matters_is_a_note() -> None:
    ((code, text),) = list_findings(replace(PLAIN, batch=VARYING))
    assert code == "ATN713"
    assert "3 % of elements" in text


def test_chance_is_caught_by_the_command_and_what_repeats_is_quiet(attncheck: Run, tmp_path: Path, marker: str) -> None:
    pytest.importorskip("torch")
    source = """
    calls = 0
    def run(inputs, deterministic):
        global calls
        calls += 1
        answer = right(inputs, deterministic)
        dv = answer.dv.clone()
        dv[0, 3, 0, 5] *= 1.0 + 0.5 * (calls % 3 == 0)
        return replace(answer, dv=dv)
    """
    arguments = ("determinism", "--device", "cpu", "--repeat", "4", "--backend", "shaky", "--backend", "sdpa_flash")
    environment = write_backend(tmp_path / "site", "shaky", source)
    done = attncheck(*arguments, "--output", "json=report.json", env=environment)
    assert done.returncode == 0, done.stderr
    assert "ATN711 warning shaky is not reproducible: dv change between calls" in done.stdout
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    pytest.importorskip("jsonschema").validate(report, make_report_schema())
    assert {finding["subject"] for finding in report["findings"]} == {"shaky"}
    steady = [repeats for repeats in report["determinism"]["repeats"] if repeats["backend"] == "sdpa_flash"]
    assert {repeats["mode"] for repeats in steady} == {"default", "deterministic", "warn_only"}
    dense = next(repeats for repeats in steady if repeats["case"]["layout"] == "dense")
    assert dense["differences"][0]["numel"] >= 1_000_000
    assert [difference["distinct"] for difference in dense["batch"]] == [1, 1, 1, 1]


@pytest.mark.parametrize(("device", "slots"), [("cpu", 1), ("cuda", default_slots(gpu=True))])
def test_calls_are_timed_alone_on_a_cpu(device: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(python: str, count: int) -> None:
        assert count == slots
        raise KeyboardInterrupt

    states = [BackendState("eager", "", "torch")]
    monkeypatch.setattr("attncheck.measure.discovery.list_backends", lambda target: states)
    monkeypatch.setattr(determinism, "Pool", start)
    with pytest.raises(KeyboardInterrupt):
        determinism.run(laptop(), determinism.Request(), ExecutionTarget(sys.executable, device), lambda text: None)


@pytest.mark.parametrize(("ranks", "shard"), [(4, 256), (6, 252), (100, 200), (200, 400)])
def test_documents_are_divisible_on_any_ring(ranks: int, shard: int) -> None:
    dense, packed = determinism.choose_ring_cases(laptop(), 0, False, ranks)
    assert dense.seqlens_q == (shard * ranks,) and sum(packed.seqlens_q) == shard * ranks
    assert all(length % (2 * ranks) == 0 for length in packed.seqlens_q)


def test_documents_of_a_ring_have_different_lengths() -> None:
    _, packed = determinism.choose_ring_cases(laptop(), 0, False, 4)
    assert packed.seqlens_q == (512, 8, 256, 248)


@pytest.mark.parametrize(("calls", "share"), [(2, 0.95), (31, 0.095), (300, 0.00997)])
def test_the_excluded_share_of_calls(calls: int, share: float) -> None:
    """A call that varies with this probability is noticed in 95 % of tries: the first call varies from no other."""
    assert determinism.excluded_share(calls) == pytest.approx(share, rel=0.01)
    assert (1 - determinism.excluded_share(calls)) ** (calls - 1) == pytest.approx(0.05)
