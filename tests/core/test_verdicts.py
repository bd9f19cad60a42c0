"""Budgets, answers and words, at their edges."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from attncheck.core.cases import Case, Dtype, with_name
from attncheck.core.verdicts import (
    HUGE,
    BackendState,
    Budget,
    Difference,
    MeasuredOn,
    Outcome,
    Repeats,
    Run,
    Score,
    Verdict,
    budget_ratio,
    describe_error,
    error_budget,
    judge_run,
    slope_budget,
    worst_error,
)

CASE = with_name(Case("verdicts", (300,), (300,)))
CLEAN = Score("dq", 1.0, 2.0, 0, 1e-3, 1.0, 1e-3, 1.5, 1, 2, 7, -1, slope_sigma=1e-4)


def judge(*scores: Score, case: Case = CASE, factor: float = 1.0) -> tuple[str, str]:
    verdict = judge_run(Run("planted", case, "ok", scores=scores, class_factor=factor))
    return verdict.answer, verdict.reason


@pytest.mark.parametrize(
    ("changes", "answer", "reason"),
    [
        ({}, "pass", "dq has z_rms 1 (budget 2)"),
        ({"z_rms": 2.0}, "pass", "dq has z_rms 2 (budget 2)"),
        ({"z_rms": 2.01}, "warn", "dq has z_rms 2.01 (budget 2)"),
        ({"z_rms": 6.0}, "warn", "dq has z_rms 6 (budget 2)"),
        ({"z_rms": 6.1}, "fail", "dq has z_rms 6.1 (budget 2)"),
        ({"z_row": 12.0}, "pass", "dq has z_row 12 (budget 12) at batch 1, head 2, token 7"),
        ({"z_row": 36.0, "rank": 0}, "warn", "dq has z_row 36 (budget 12) at batch 1, head 2, token 7 on rank 0"),
        ({"z_row": 12.5}, "warn", "dq has z_row 12.5 (budget 12) at batch 1, head 2, token 7"),
        ({"z_row": 37.0, "rank": 3}, "fail", "dq has z_row 37 (budget 12) at batch 1, head 2, token 7 on rank 3"),
        ({"slope": 1.0009, "slope_head": 3}, "warn", "dq is 1.0009 times the exact result in head 3 (budget ±0.0004)"),
        ({"slope": 0.998}, "fail", "dq is 0.998 times the exact result in head 0 (budget ±0.0004)"),
        ({"slope": 1.0 + 2.0**-12, "slope_sigma": 2.0**-13}, "pass", "dq has z_rms 1 (budget 2)"),
        ({"slope": 0.5, "z_rms": 5.8}, "fail", "dq is 0.5 times the exact result in head 0 (budget ±0.0004)"),
        ({"slope": 0.5, "z_rms": 6.0}, "fail", "dq has z_rms 6 (budget 2)"),
        ({"slope": 1.001, "z_rms": 5.8}, "warn", "dq has z_rms 5.8 (budget 2)"),
        ({"slope": 0.5, "z_rms": 90.0}, "fail", "dq has z_rms 90 (budget 2)"),
        ({"z_rms": 7.0, "mode": "deterministic"}, "fail", "in deterministic mode, dq has z_rms 7 (budget 2)"),
        ({"nonfinite": 1}, "fail", "1 value is NaN or infinite in dq"),
        ({"nonfinite": 5}, "fail", "5 values are NaN or infinite in dq"),
        ({"tensor": "lse", "z_row": 1.9e-4}, "pass", "lse is off by 0.00019 (budget 0.0002)"),
        ({"tensor": "lse", "z_row": 2e-4}, "pass", "lse is off by 0.0002 (budget 0.0002)"),
        ({"tensor": "lse", "z_row": 2.01e-4}, "warn", "lse is off by 0.0002 (budget 0.0002)"),
        ({"tensor": "lse", "z_row": 5e-4}, "warn", "lse is off by 0.0005 (budget 0.0002)"),
        ({"tensor": "lse", "z_row": 7e-4, "z_rms": 99.0}, "fail", "lse is off by 0.0007 (budget 0.0002)"),
        ({"tensor": "dsinks", "z_rms": 5.9, "z_row": 11.0}, "pass", "dsinks has z_rms 5.9 (budget 6)"),
        ({"tensor": "dsinks", "z_rms": 6.1}, "warn", "dsinks has z_rms 6.1 (budget 6)"),
        ({"tensor": "dsinks", "z_row": 13.0}, "warn", "dsinks has z_row 13 (budget 12) at batch 1, head 2, token 7"),
        ({"tensor": "dsinks", "z_rms": 19.0}, "fail", "dsinks has z_rms 19 (budget 6)"),
    ],
)  # fmt: skip
def test_a_score_is_judged_by_its_worst_measure(changes: dict[str, object], answer: str, reason: str) -> None:
    assert judge(replace(CLEAN, **changes)) == (answer, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(("times", "answer"), [(1.0, "pass"), (1.01, "warn"), (100.0, "warn"), (100.5, "fail")])
def test_a_loss_of_precision_is_a_warning_if_sums_cancel(times: float, answer: str) -> None:
    case = replace(CASE, values="cancelling", causal=False)
    z_rms = times * error_budget(case, "dq").z_rms
    assert judge(replace(CLEAN, z_rms=z_rms), case=case)[0] == answer


def test_the_worst_tensor_decides_and_a_class_may_round_more() -> None:
    assert judge(CLEAN, replace(CLEAN, tensor="dk", z_rms=7.0), replace(CLEAN, tensor="dv", z_rms=5.0)) == (
        "fail",
        "dk has z_rms 7 (budget 2)",
    )
    assert judge(replace(CLEAN, z_rms=7.0), factor=1.25)[0] == "warn"
    assert judge(replace(CLEAN, slope=1.0033), factor=1.25)[0] == "warn"
    assert judge(replace(CLEAN, z_row=14.9), factor=1.25) == (
        "pass",
        "dq has z_row 14.9 (budget 15) at batch 1, head 2, token 7",
    )
    assert judge(replace(CLEAN, z_row=15.1), factor=1.25)[0] == "warn"
    assert worst_error(CASE, ()) == (0.0, "")


def test_where_nothing_is_said_a_class_rounds_once_and_a_score_is_of_one_device() -> None:
    plain = Score("dq", 3.0, 2.0, 0, 1e-3, 1.0, 1e-3, 1.5, 1, 2, 7, -1)
    run = judge_run(Run("planted", CASE, "ok", scores=(plain,)))
    assert (run.answer, run.budget_ratio, run.reason) == ("warn", 1.5, "dq has z_rms 3 (budget 2)")
    assert run.evidence == (
        "dq has z_rms 3 (budget 2); relative error 0.001, 1.5 × eager's largest error; "
        "worst at batch 1, head 2, token 7",
    )
    assert budget_ratio(CASE, plain) == 1.5
    assert worst_error(CASE, (plain,)) == (1.5, describe_error(CASE, plain))
    assert describe_error(CASE, plain) == "dq has z_rms 3 (budget 2)"
    difference = Difference("dq", 1, 0, 0.0, 0, 8)
    assert (difference.token, difference.head, plain.rank) == (-1, -1, -1), "no place"
    assert Repeats("planted", CASE, "default", "ok").class_factor == 1.0
    assert not BackendState("planted", "Planted", "planted").over_ranks


def test_records_are_frozen() -> None:
    for record in (Budget, Score, Run, Verdict, BackendState, MeasuredOn, Difference, Repeats):
        first = next(iter(record.__dataclass_fields__))
        with pytest.raises(FrozenInstanceError):
            setattr(object.__new__(record), first, None)


@pytest.mark.parametrize(
    ("dtype", "values", "z_rms", "z_row"),
    [
        ("bfloat16", "normal", 2.0, 12.0),
        ("float16", "normal", 2.0, 12.0),
        ("float16", "small", 3.0, 12.0),
        ("bfloat16", "small", 2.0, 12.0),
        ("float32", "small", 6.0, 30.0),
    ],
)
def test_budgets_are_those_of_the_study(dtype: Dtype, values: str, z_rms: float, z_row: float) -> None:
    budget = error_budget(replace(CASE, dtype=dtype, values=values), "out")  # type: ignore[arg-type]
    assert (budget.z_rms, budget.z_row) == (z_rms, z_row)


def test_a_slope_is_not_judged_if_rounding_alone_may_give_any() -> None:
    for sigma, ratio in ((0.2499, 600.0 / (4.0 * 0.2499)), (0.25, 0.0), (0.4, 0.0)):
        assert budget_ratio(CASE, replace(CLEAN, z_rms=0.0, z_row=0.0, slope=601.0, slope_sigma=sigma)) == (
            pytest.approx(ratio)
        )


def test_a_slope_below_what_kernels_approximate_is_not_judged() -> None:
    assert slope_budget("bfloat16", 0.0) == slope_budget("float16", 1e-6) == 3e-4
    assert slope_budget("float32", 0.0) == 1e-4
    assert slope_budget("bfloat16", 1e-3) == pytest.approx(4e-3)
    assert slope_budget("bfloat16", 1e-3, 1.25) == pytest.approx(5e-3 + 2**-9)  # a second rounding has a direction
    assert slope_budget("float16", 1e-3, 1.25) == pytest.approx(5e-3 + 2**-12)
    assert slope_budget("float32", 1e-3, 1.25) == pytest.approx(5e-3 + 2**-25)
    assert slope_budget("float32", 0.0, 1.25) == 1e-4


@pytest.mark.parametrize(
    ("outcome", "answer", "ratio"),
    [
        ("refused", "refused", 0.0),
        ("skipped", "skipped", 0.0),
        ("out_of_memory", "skipped", 0.0),
        ("raised", "fail", HUGE),
        ("died", "lost", HUGE),
        ("timed_out", "lost", HUGE),
        ("out_of_time", "lost", 0.0),
    ],
)
def test_what_was_not_measured_is_no_pass(outcome: Outcome, answer: str, ratio: float) -> None:
    verdict = judge_run(Run("planted", CASE, outcome, "why"))
    assert (verdict.answer, verdict.budget_ratio, verdict.reason) == (answer, ratio, "why")


def test_probes_and_impostors_fail_whatever_the_scores() -> None:
    run = Run("flash_attention_2", CASE, "ok", scores=(CLEAN,))
    violations = ("head 0 sees 3 keys, not 4", *"bcdef")
    broken = judge_run(replace(run, violations=violations, warnings=tuple("xyz")))
    assert (broken.answer, broken.reason, broken.budget_ratio) == ("fail", "head 0 sees 3 keys, not 4", HUGE)
    assert broken.evidence == ("b", "c", "d"), "a few more of them"
    reserved = judge_run(replace(run, warnings=tuple("xyz"), scores=()))
    assert (reserved.answer, reserved.reason, reserved.budget_ratio, reserved.evidence) == (
        "warn",
        "x",
        0.0,
        ("y", "z"),
    )
    impostor = judge_run(replace(run, foreign_kernels="sdpa_math", violations=("x",)))
    assert (impostor.answer, impostor.reason) == ("fail", "sdpa_math ran instead of flash_attention_2")
    assert impostor.budget_ratio == HUGE
    expected = judge_run(Run("planted", CASE, "ok"))
    assert (expected.answer, expected.reason, expected.budget_ratio, expected.evidence) == (
        "pass",
        "as expected",
        0.0,
        (),
    )
    assert budget_ratio(CASE, replace(CLEAN, nonfinite=1)) == HUGE
    assert budget_ratio(CASE, replace(CLEAN, tensor="lse", z_row=4e-4)) == pytest.approx(2.0)
    assert budget_ratio(CASE, replace(CLEAN, z_rms=3.0, z_row=24.0, slope=1.0006)) == pytest.approx(2.0)
    assert budget_ratio(CASE, replace(CLEAN, z_rms=5.0, z_row=24.0, slope=1.0006)) == pytest.approx(2.5)
    assert budget_ratio(CASE, replace(CLEAN, z_rms=3.0, z_row=24.0, slope=0.999)) == pytest.approx(2.5)


def test_evidence_names_what_is_over_budget_and_where() -> None:
    packed = replace(CASE, layout="packed")
    over = replace(CLEAN, z_rms=8.0, relative_error=0.02, document=3)
    at_budget = replace(CLEAN, z_rms=2.0)
    verdict = judge_run(Run("x", packed, "ok", scores=(CLEAN, at_budget, over), pattern=("a pattern",), violations=()))
    error = describe_error(packed, over)
    assert verdict.evidence == (
        "a pattern",
        f"{error}; relative error 0.02, 1.5 × eager's largest error; worst at batch 1, head 2, token 7, document 3",
    )


def test_two_measurements_on_a_device_add_up() -> None:
    first = MeasuredOn("cuda", "H200", "2.11", "standard", 0, 10.0, 2, shimmed_names=("a",))
    later = MeasuredOn("cuda", "H200", "2.11", "", 0, 5.0, 1, True, 4, True, ("a", "b"))
    merged = first.merge(later)
    assert (merged.suite, merged.seconds, merged.not_reached, merged.ring_size) == ("standard", 15.0, 3, 4)
    assert merged.interrupted and merged.emulated and merged.shimmed_names == ("a", "b")
    assert MeasuredOn().merge(later) is later and first.merge(MeasuredOn()) is first
    other_way = replace(later, ring_size=2, suite="thorough").merge(
        replace(first, seconds=0.00049, ring_size=1, suite="")
    )
    assert (other_way.suite, other_way.ring_size, other_way.seconds) == ("thorough", 2, 5.0)
    assert other_way.interrupted and other_way.emulated and other_way.shimmed_names == ("a", "b")
    assert replace(later, seconds=0.1).merge(replace(first, seconds=0.2)).seconds == 0.3
    assert replace(later, seconds=0.1114).merge(replace(first, seconds=0.2222)).seconds == 0.334
    neither = first.merge(replace(first, suite="quick"))
    assert (neither.suite, neither.interrupted, neither.emulated) == ("standard", False, False)
