"""The emulations that planted faults are made of are right, and every planted fault changes what it says it changes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.score import score_outputs
from attncheck.core.cases import DTYPES, Case, Dtype, with_name
from attncheck.core.verdicts import Run, judge_run
from tests.measure.planted import emulated, ring
from tests.measure.planted.faults import FAULTS, Fault
from tests.measure.planted.narrow_faults import NARROW_FAULTS
from tests.measure.planted.triton_kernels import KERNEL_FAULTS

Kernel = Callable[[Inputs, bool], Outputs]
CORRECT: dict[str, tuple[Kernel, float]] = {  # and the class factor by which each is judged
    "blocks_of_64": (emulated.run_blocks_of_64, 1.0),
    "blocks_of_128": (emulated.run_blocks_of_128, 1.0),
    "split_kv": (emulated.run_split_kv, 1.0),
    "ring": (ring.run_ring, 1.25),
    "zigzag": (ring.run_zigzag, 1.25),
    "stripe": (ring.run_stripe, 1.25),
}


def make_case(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...] | None = None, **changes: object) -> Case:
    return with_name(replace(Case("planted", seqlens_q, seqlens_k or seqlens_q), **changes))  # type: ignore[arg-type]


CASES = (
    make_case((256,), num_kv_heads=2),
    make_case((193, 193), strides="transposed"),
    make_case((140,), (256,)),
    make_case((256,), (140,), alignment="top_left"),
    make_case((256,), window_size=(63, 0), num_kv_heads=2, values="outlier"),
    make_case((200,), window_size=(40, 20), causal=False),
    make_case((200, 70, 1), layout="right_padded", causal=False),
    make_case((200, 70, 1), layout="left_padded"),
    make_case((130, 0, 65, 1, 40), layout="packed", num_kv_heads=1),
    make_case((100, 60), (70, 129), layout="packed"),
    make_case((200,), alibi=True, strides="sliced"),
    make_case((200,), softcap=20.0, values="large", causal=False),
    make_case((200,), sinks=True, num_kv_heads=2, head_dim=80, v_head_dim=48),
    make_case((200,), strides="expanded", values="long_tail"),
    make_case((512,), num_heads=2, num_kv_heads=2, head_dim=32, v_head_dim=32, values="ramp"),
    make_case((200,), values="small", causal=False, num_kv_heads=1),
)
IDS = [case.name for case in CASES]
NARROW_CASES = (  # for the faults that few cases show
    make_case((70,) * 7, num_kv_heads=2),
    make_case((70,), num_heads=40, num_kv_heads=8),
    make_case((1,) * 5, (70,) * 5),
    make_case(tuple(1 + index % 3 for index in range(140)), layout="packed"),
    make_case((64, 40, 9), layout="left_padded", mask="bool"),
    make_case((61, 40, 9), layout="right_padded", mask="bool", per_head=True),
    make_case((61, 40, 9), layout="left_padded", mask="additive", per_head=True),
    make_case((64,), (20,), mask="bool"),
    make_case((100,), scale=0.04),
    make_case((60, 40), layout="packed", scale=0.25),
    make_case((100,), attention_chunk=16),
    make_case((100, 37), layout="left_padded", attention_chunk=16),
    make_case((100,), values="negative"),
    make_case((100,), strides="scalar_dout"),
)


@functools.cache
def cached_inputs(case: Case) -> Inputs:
    return make_inputs(case, "cpu")


@functools.cache
def cached_reference(case: Case) -> Reference:
    return compute_reference(cached_inputs(case))


@functools.cache
def cached_outputs(run: Kernel, case: Case) -> Outputs:
    return run(cached_inputs(case), False)


def tensors_of(outputs: Outputs) -> dict[str, Tensor]:
    names = ("out", "lse", "dq", "dk", "dv", "dsinks")
    return {name: x for name in names if (x := getattr(outputs, name)) is not None}


def has_equal_tensors(first: Outputs, second: Outputs) -> bool:
    return all(torch.equal(x, tensors_of(second)[name]) for name, x in tensors_of(first).items())


def with_dtype(case: Case, dtype: Dtype) -> Case:
    return with_name(replace(case, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_correct_emulation_passes(case: Case, dtype: Dtype) -> None:
    case = with_dtype(case, dtype)
    for name, (run, factor) in CORRECT.items():
        tensor_scores = score_outputs(cached_outputs(run, case), cached_reference(case))
        verdict = judge_run(Run(name, case, "ok", scores=tuple(tensor_scores), class_factor=factor))
        assert verdict.answer == "pass", (name, verdict.reason)
        if dtype != "float32" and not case.padded and case.values != "small":  # float16's subnormals: up to sqrt(8)
            noise = {score.tensor: score.z_rms for score in tensor_scores if score.tensor in ("out", "dq", "dk", "dv")}
            assert all(0.3 < z < 1.5 for z in noise.values()), (name, noise)


# Dropout is judged by its probe alone (test_planted_faults.py).
ORDINARY = [fault for fault in FAULTS if not fault.long and fault.family not in ("determinism", "cache", "dropout")]
# One fault of each family shows here what all show nightly; test_planted_faults.py catches every one of them.
FIRST_OF_FAMILY = {(fault.family, fault.logic): fault for fault in reversed(ORDINARY)}.values()


def at_night_but_one_of_a_family(faults: list[Fault]) -> list[Any]:
    nightly = pytest.mark.nightly
    return [fault if fault in FIRST_OF_FAMILY else pytest.param(fault, marks=nightly) for fault in faults]


def cases_of(fault: Fault) -> tuple[Case, ...]:
    return (*NARROW_CASES, *CASES[:4]) if fault in NARROW_FAULTS else CASES


def run_wrong(fault: Fault, case: Case) -> Outputs:
    return fault.run(cached_inputs(case), fault.family == "deterministic")


@pytest.mark.parametrize("fault", at_night_but_one_of_a_family(ORDINARY), ids=lambda fault: fault.name)
def test_a_fault_changes_the_result_where_it_applies_and_nowhere_else(fault: Fault) -> None:
    dtypes: tuple[Dtype, ...] = ("bfloat16",) if fault.logic else DTYPES
    cases = [with_dtype(case, dtype) for dtype in dtypes for case in cases_of(fault)]
    applying = [case for case in cases if fault.applies(case)]
    assert applying
    for case in applying[:2]:
        assert not has_equal_tensors(run_wrong(fault, case), cached_outputs(fault.right, case)), case.name
    for case in [case for case in cases if case not in applying][:2]:
        assert has_equal_tensors(run_wrong(fault, case), cached_outputs(fault.right, case)), case.name


@pytest.mark.parametrize(
    "fault", at_night_but_one_of_a_family([f for f in ORDINARY if f.logic]), ids=lambda fault: fault.name
)
def test_scores_alone_fail_a_fault_of_logic(fault: Fault) -> None:
    factor = 1.25 if fault.family == "ring" else 1.0
    for case in filter(fault.applies, cases_of(fault)):
        tensor_scores = tuple(score_outputs(run_wrong(fault, case), cached_reference(case)))
        if judge_run(Run(fault.name, case, "ok", scores=tensor_scores, class_factor=factor)).answer == "fail":
            return
    pytest.fail("no case shows it")


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.family == "determinism"], ids=lambda fault: fault.name)
def test_chance_strikes_once_in_twenty_calls(fault: Fault) -> None:
    case = CASES[0]
    answers = [fault.run(cached_inputs(case), False) for _ in range(40)]
    assert sum(not has_equal_tensors(answer, cached_outputs(fault.right, case)) for answer in answers) == 2


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.family == "cache"], ids=lambda fault: fault.name)
def test_a_cache_answers_with_what_it_was_asked_before(fault: Fault) -> None:
    before, case = with_name(replace(CASES[1], seed=7)), CASES[1]
    fault.run(cached_inputs(before), False)
    answer, stale = tensors_of(fault.run(cached_inputs(case), False)), tensors_of(cached_outputs(fault.right, before))
    assert torch.equal(answer["dq"], stale["dq"])
    assert not has_equal_tensors(cached_outputs(fault.right, before), cached_outputs(fault.right, case))


LONG = make_case((4160,), num_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
LONGER = make_case((32832,), num_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
FAR = [fault for fault in FAULTS if fault.long]


@pytest.mark.parametrize("fault", FAR, ids=lambda fault: fault.name)
def test_a_distant_fault_spares_shorter_cases(fault: Fault) -> None:
    assert not any(fault.applies(case) for case in CASES)
    assert fault.applies(LONGER)
    if "4096" in fault.name:
        assert not has_equal_tensors(fault.run(cached_inputs(LONG), False), cached_outputs(fault.right, LONG))
    else:
        assert not fault.applies(LONG)


@pytest.fixture
def cuda() -> None:
    if not torch.cuda.is_available():
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there is no GPU")
        pytest.skip("no GPU here")


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("fault", FAR, ids=lambda fault: fault.name)
def test_a_distant_fault_shows_in_a_long_case(fault: Fault) -> None:
    far = make_inputs(LONGER, "cuda")
    assert not has_equal_tensors(fault.run(far, False), fault.right(far, False))


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("fault", KERNEL_FAULTS, ids=lambda fault: fault.name)
def test_a_triton_kernel_fails_with_its_fault_and_passes_without(fault: Fault) -> None:
    pytest.importorskip("triton")
    full = make_case((200, 200), causal=False)
    case = next(case for case in (CASES[0], full) if fault.applies(case))
    case_inputs = make_inputs(case, "cuda")
    exact = compute_reference(case_inputs)
    for run, answer in ((fault.right, "pass"), (fault.run, "fail")):
        tensor_scores = tuple(score_outputs(run(case_inputs, False), exact))
        assert judge_run(Run(fault.name, case, "ok", scores=tensor_scores)).answer == answer


def test_names_are_unique_and_there_are_enough() -> None:
    names = [fault.name for fault in (*FAULTS, *KERNEL_FAULTS)]
    assert len(names) == len(set(names))
    assert len(FAULTS) >= 190
