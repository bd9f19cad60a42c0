"""What wrong cases have in common is named, and what they may share by chance is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from attncheck.core.cases import Case
from attncheck.core.verdicts import Run, Score
from attncheck.measure.case_features import AGAIN, EXPLAINED, NEEDED, OR, PLAIN, STALE_CONTENTS
from attncheck.measure.suites import make_suite
from attncheck.measure.wrong_cases import describe_shared

CASES = tuple(case for case in make_suite("quick") if not case.probe)


def make_run(case: Case, wrong: bool, mode: str = "default") -> Run:
    tensors = ("out", "dq", "dk") if case.backward else ("out",)
    right = Score("out", 1.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0)
    scores = [replace(right, tensor=name, z_rms=99.0 if wrong and name != "out" else 1.0) for name in tensors]
    return Run("planted", case, "ok", scores=tuple(replace(score, mode=mode) for score in scores))  # type: ignore[arg-type]


def describe(is_wrong: Callable[[Case], bool]) -> tuple[str, ...]:
    runs = [(make_run(case, is_wrong(case)), is_wrong(case)) for case in CASES if case.backward or not is_wrong(case)]
    return describe_shared([run for run, wrong in runs if wrong], [run for run, wrong in runs if not wrong])


@pytest.mark.parametrize(
    ("expected", "is_wrong"),
    [
        ("transposed dout", lambda case: case.strides == "transposed" or case.strides[3:] == "t"),
        ("its own softmax scale", lambda case: case.scale > 0.0),
        ("a v_head_dim that is not a multiple of 32", lambda case: case.v_head_dim % 32 > 0),
        ("large scores", lambda case: case.alibi or case.values in ("large", "ramp")),
        ("sinks with no packed documents", lambda case: case.sinks and case.layout != "packed"),
        (
            "dtype fp32 with a number of heads of at least 9",
            lambda case: case.num_heads > 8 and case.dtype == "float32",
        ),
        ("head_dim 192 (or head_dim over 128, or a head_dim of at least 192)", lambda case: case.head_dim > 80),
    ],
)
def test_the_feature_of_all_wrong_cases_is_named(expected: str, is_wrong: Callable[[Case], bool]) -> None:
    (line,) = describe(is_wrong)
    assert line.startswith(expected) and "none of" in line, line


def test_features_that_fit_equally_well_are_alternatives() -> None:
    line = describe(lambda case: case.num_heads > 8)[0]
    assert line.startswith("a number of heads of at least 9"), line


def test_a_limit_that_was_exceeded_is_named_before_one_that_was_not_reached() -> None:
    long = [replace(CASES[0], num_heads=1, num_kv_heads=1, seqlens_q=(n,), seqlens_k=(n,)) for n in range(900, 904)]
    others = [make_run(case, False) for case in CASES if case.backward]
    line = describe_shared([make_run(case, True) for case in long], others)[0]
    assert 0 < line.find("at least 900") < line.find("heads of at most 1"), line


def test_cases_that_could_not_show_the_error_do_not_count() -> None:
    line = describe(lambda case: case.causal and case.backward and case.num_heads == 20)[0]
    assert "forward" not in line and "backward" not in line, line
    forward_alone = sum(not case.backward for case in CASES)
    assert forward_alone and f"of {len(CASES) - forward_alone}" not in line, "these right ones are not all of the rest"


def test_what_few_cases_share_by_chance_is_not_named() -> None:
    backward = [case for case in CASES if case.backward]
    for first in range(0, len(backward) - 3, 3):
        chosen = backward[first : first + 3 : 2]
        assert len(describe(lambda case: case in chosen)) <= 1  # noqa: B023
    assert describe(lambda case: case is backward[0]) == ()
    named = sum(bool(describe(lambda case: case in (backward[i], backward[-1 - i]))) for i in range(len(backward) // 2))  # noqa: B023
    assert named <= 2, "two cases of many have much in common by chance"


def test_cases_of_one_shape_are_no_independent_evidence() -> None:
    long = [
        replace(CASES[0], seqlens_q=(900,), seqlens_k=(900,), values=values) for values in ("normal", "large", "ramp")
    ]
    others = [make_run(case, False) for case in CASES if case.backward]
    assert not describe_shared([make_run(case, True) for case in long], others)
    longer = [replace(case, seqlens_q=(900 + i,), seqlens_k=(900 + i,)) for i, case in enumerate(long)]
    assert " of at least 900" in describe_shared([make_run(case, True) for case in longer], others)[0]


def test_what_wrong_cases_were_reduced_to_outranks_what_they_share() -> None:
    def describe_reduced(line: str, count: int, is_wrong: Callable[[Case], bool]) -> tuple[str, ...]:
        wrong = [make_run(case, True) for case in CASES if case.backward and is_wrong(case)]
        wrong[:count] = [replace(run, pattern=("another line", line)) for run in wrong[:count]]
        return describe_shared(wrong, [make_run(case, False) for case in CASES if not is_wrong(case)])

    def is_wide(case: Case) -> bool:
        return case.head_dim > 80

    (fit,) = describe(is_wide)
    reduced = f"{NEEDED}only head_dim 192; right without it"
    for line in (reduced, f"{PLAIN}64 tokens", STALE_CONTENTS):
        assert describe_reduced(line, 2, is_wide) == (line,), "a fit would name features that no call was made without"
    assert describe_reduced("another line", 2, is_wide) == (fit,)
    for subject in ("dq of token 3", "dsinks"):
        assert describe_reduced(f"{subject} changes when the same call is made again: why", 1, is_wide) == (
            f"{AGAIN}: why",
        )


def test_a_mistake_is_named_only_if_it_explains_every_reduced_case() -> None:
    def describe_explained(*mistakes: str) -> str:
        wrong = [make_run(case, True) for case in CASES if case.backward][: len(mistakes) + 1]
        for index, mistake in enumerate(mistakes):
            explained = (EXPLAINED + mistake,) if mistake else ()
            wrong[index] = replace(wrong[index], pattern=(*explained, f"{NEEDED}only sinks; right without it"))
        return describe_shared(wrong, [make_run(CASES[0], False)])[0]

    assert describe_explained("a", f"b{OR}a") == f"{EXPLAINED}a"
    assert describe_explained(f"a{OR}b") == f"{EXPLAINED}a{OR}b"
    for mistakes in (("a", "b"), ("a", "")):
        assert describe_explained(*mistakes).startswith(NEEDED)
