"""A known mistake is recognized by its results, and what is right or wrong in another way is not called one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.masks import alibi_slopes
from attncheck.attention.reference.dense import DenseAttention
from attncheck.attention.reference.explanations import Known, WrongCall, explain
from attncheck.attention.reference.mistakes import iter_mistakes
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.score import score_outputs
from attncheck.core.cases import Case
from attncheck.core.verdicts import budget_ratio

CASES: dict[str, dict[str, Any]] = {
    "packed": {"layout": "packed", "seqlens_q": (70, 41), "seqlens_k": (90, 141), "num_heads": 6, "num_kv_heads": 2},
    "padded": {"layout": "left_padded", "seqlens_q": (130, 60), "seqlens_k": (130, 60), "num_kv_heads": 4},
    "window": {"seqlens_q": (150,), "seqlens_k": (170,), "window_size": (40, 12), "softcap": 5.0},
    "sinks": {"seqlens_q": (90, 90), "seqlens_k": (90, 90), "sinks": True, "num_heads": 8, "num_kv_heads": 2},
    "alibi": {"seqlens_q": (300,), "seqlens_k": (300,), "alibi": True, "attention_chunk": 70},
    "additive": {"seqlens_q": (99,), "seqlens_k": (99,), "mask": "additive", "per_head": True, "dtype": "float32"},
    "full": {"seqlens_q": (65,), "seqlens_k": (80,), "causal": False, "scale": 0.3, "dtype": "float16"},
}
UNIQUE = {
    "packed": ("packed documents were one", "query head h read kv head h mod the number of kv heads"),
    "padded": ("padding was on the other side", "delta = rowsum(dout * out) was left out"),
    "window": ("the window's left side was one larger", "the soft-cap had no derivative", "there was no soft-cap"),
    "sinks": (
        "there were no sinks",
        "head h had the sink of head h mod 4",
        "only the first 1 heads of a group counted",
    ),
    "alibi": ("ALiBi's key positions were in bfloat16", "chunks were a sliding window", "the scores were in bfloat16"),
    "additive": ("head h had the bias of head 0", "the mask's bias was transposed", "the inputs were in bfloat16"),
    "full": ("the mask was causal", "dk was multiplied by the softmax scale again", "the softmax scale was 1"),
}


def make_case(name: str) -> Case:
    fields: dict[str, Any] = {"seqlens_q": (), "seqlens_k": (), "head_dim": 32, "v_head_dim": 32} | CASES[name]
    return Case("tests", **fields)


def make_outputs(inputs: Inputs, results: Mapping[str, Tensor]) -> Outputs:
    dtype = getattr(torch, inputs.case.dtype)
    rounded = {name: results[name].transpose(1, 2).to(dtype) for name in ("out", "dq", "dk", "dv")}
    return Outputs(**rounded, lse=results["lse"][..., 0].float(), dsinks=results.get("dsinks"))  # type: ignore[arg-type]


def make_call(inputs: Inputs, changed: DenseAttention) -> tuple[WrongCall, float]:
    """Return what a kernel with a mistake returns, and its largest error over its budget."""
    forward = changed.forward()
    exact, outputs = compute_reference(inputs), make_outputs(inputs, forward | changed.backward(forward))

    def measure(reference: Reference) -> dict[str, float]:
        return {x.tensor: budget_ratio(inputs.case, x) for x in score_outputs(outputs, reference)}

    return WrongCall(inputs, outputs, exact, measure), max(measure(exact).values())


@pytest.mark.parametrize("name", CASES)
def test_an_attention_without_a_mistake_is_right(name: str) -> None:
    inputs = make_inputs(make_case(name), "cpu")
    _, ratio = make_call(inputs, DenseAttention.of(inputs))
    assert ratio <= 1.0


@pytest.mark.parametrize("name", CASES)
def test_a_known_mistake_is_named(name: str) -> None:
    inputs = make_inputs(make_case(name), "cpu")
    mistakes = dict(iter_mistakes(DenseAttention.of(inputs)))
    for mistake in UNIQUE[name]:
        call, ratio = make_call(inputs, mistakes[mistake])
        assert ratio > 1.0, mistake
        assert mistake in explain([call], {}), mistake


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_that_is_not_known_gets_no_name(name: str) -> None:
    inputs = make_inputs(make_case(name), "cpu")
    right = DenseAttention.of(inputs)
    noise = torch.randn(right.v.shape, generator=torch.Generator().manual_seed(5)).to(right.v.dtype)
    for wrong in (
        replace(right, v=right.v + 0.2 * noise),
        replace(right, q=right.q.roll(3, -1)),
        replace(right, k=right.k.flip(2)),
    ):
        call, ratio = make_call(inputs, wrong)
        assert ratio > 1.0
        assert explain([call], {}) == ""


def test_a_mistake_in_the_saved_lse_alone_is_named() -> None:
    """The returned LSE, which is another tensor, is right."""
    inputs = make_inputs(make_case("sinks"), "cpu")
    right = DenseAttention.of(inputs)
    changed = dict(iter_mistakes(right))["the saved LSE left out the sinks"]
    forward = right.forward()
    gradients = changed.backward(forward | {"lse": changed.save_lse(forward["lse"])})
    call, ratio = make_call(inputs, right)
    call = call._replace(outputs=make_outputs(inputs, forward | gradients))

    def measure(reference: Reference) -> dict[str, float]:
        return {x.tensor: budget_ratio(inputs.case, x) for x in score_outputs(call.outputs, reference)}

    assert ratio <= 1.0 < max(measure(call.exact).values())
    assert explain([call._replace(measure=measure)], {}) == "the saved LSE left out the sinks, in the backward"


def test_another_case_decides_between_mistakes_that_look_alike() -> None:
    case = replace(make_case("window"), seqlens_q=(60,), seqlens_k=(60,), window_size=(15, 0))
    calls = []
    for length in (60, 200):
        inputs = make_inputs(replace(case, seqlens_q=(length,), seqlens_k=(length,)), "cpu")
        mistakes = dict(iter_mistakes(DenseAttention.of(inputs)))
        calls.append(make_call(inputs, mistakes["the tile's first query decided the window's left side, tile 128"])[0])
    assert (
        explain(calls[:1], {})
        != explain(calls, {})
        == "the tile's first query decided the window's left side, tile 128"
    )


def test_a_mistake_must_fit_every_row_of_every_call() -> None:
    """Tiles of 128 queries look up their keys' tiles at half their number, which only the third one shows."""
    calls: list[WrongCall] = []
    known: Known = {}
    for length in (255, 400):
        case = replace(make_case("window"), seqlens_q=(length,), seqlens_k=(length,), window_size=(16, 0))
        inputs = make_inputs(case, "cpu")
        right = DenseAttention.of(inputs)
        hidden = right.places.k // 128 > right.places.q // 128 // 2
        calls.append(make_call(inputs, replace(right, visible=right.visible & ~hidden[:, None]))[0])
    explain(calls[:1], known)
    assert ("keys from 128 on were hidden", "") in known
    assert explain(calls[1:], known) == "" and not known


def test_a_call_that_is_right_refutes_a_mistake_that_would_make_it_wrong() -> None:
    inputs = make_inputs(make_case("full"), "cpu")
    wrong, _ = make_call(inputs, dict(iter_mistakes(DenseAttention.of(inputs)))["the mask was causal"])
    others = [replace(make_case("full"), seqlens_q=(80,), causal=causal) for causal in (False, True)]
    outside, inside = (make_call(x, DenseAttention.of(x))[0] for x in (make_inputs(case, "cpu") for case in others))
    assert explain([wrong, outside], {}) == ""
    assert explain([outside, wrong], {}) == "the mask was causal", "without a wrong call there is no mistake"
    assert explain([inside], {}) == ""


def test_too_large_cases_and_dropout_are_left_out() -> None:
    inputs = make_inputs(make_case("full"), "cpu")
    call, _ = make_call(inputs, dict(iter_mistakes(DenseAttention.of(inputs)))["the mask was causal"])
    assert explain([call], {}) == "the mask was causal"
    changes: dict[str, Any]
    for changes in ({"dropout": 0.1}, {"num_heads": 4096}):
        other = replace(inputs, case=replace(inputs.case, **changes))
        assert explain([call._replace(inputs=other)], {}) == ""


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(4, "cpu").tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert alibi_slopes(6, "cpu").tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
