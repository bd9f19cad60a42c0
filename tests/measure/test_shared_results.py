"""What backends that measure one case share, and what they must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attncheck.attention.backend import Outputs
from attncheck.attention.backends import eager
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.reference.oracle import ExactChunks, Reference, compute_reference, compute_unrounded_reference
from attncheck.core.cases import Case, with_name
from attncheck.measure.worker import judging
from attncheck.measure.worker.judging import SharedResults, score_backend

CASE = with_name(Case("shared", (9,), (9,), head_dim=16, v_head_dim=8))


def test_results_are_kept_for_a_case_and_forgotten_with_it() -> None:
    shared, other = SharedResults(), replace(CASE, seed=1)
    shared.begin(CASE)
    inputs = shared.inputs_of(CASE, "cpu")
    first = shared.unrounded_reference(inputs, "fused", False).out
    assert shared.inputs_of(other, "cpu") is shared.inputs_of(other, "cpu") is not inputs
    shared.begin(CASE)
    assert shared.inputs_of(CASE, "cpu") is inputs
    assert shared.unrounded_reference(inputs, "fused", False).out is first
    shared.begin(other)
    assert shared.inputs_of(CASE, "cpu") is not inputs
    assert not torch.equal(shared.unrounded_reference(shared.inputs_of(other, "cpu"), "fused", False).out, first)


@pytest.mark.parametrize(
    ("changes", "is_shared"), [({}, True), ({"alibi": True}, False), ({"mask": "additive"}, False)]
)
def test_classes_that_round_alike_share_a_reference(changes: dict[str, Any], is_shared: bool) -> None:
    shared, inputs = SharedResults(), make_inputs(replace(CASE, **changes), "cpu")
    plain = shared.unrounded_reference(inputs, "fused", False)
    assert (shared.unrounded_reference(inputs, "fused", True).out is plain.out) == is_shared
    assert shared.unrounded_reference(inputs, "eager", False).out is not plain.out
    again = shared.unrounded_reference(inputs, "fused", False)
    assert again.out is plain.out and again.sigma["dq"] is not plain.sigma["dq"], "roundings are added to a copy"


@pytest.mark.parametrize(("fewer", "is_kept"), [(0, False), (1, True)])
def test_chunks_are_kept_for_small_cases_on_a_cpu(fewer: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ExactChunks | None] = []

    def compute(inputs: Inputs, noise: str, rounded_bias: bool, kept: ExactChunks | None) -> Reference:
        given.append(kept)
        return exact

    exact = compute_unrounded_reference(make_inputs(CASE, "cpu"))
    monkeypatch.setattr(judging, "compute_unrounded_reference", compute)
    monkeypatch.setattr(judging, "MAX_KEPT_SCORES", CASE.scores + fewer)
    inputs = make_inputs(CASE, "cpu")
    SharedResults().unrounded_reference(inputs, "fused", False)
    SharedResults().unrounded_reference(replace(inputs, device="cuda"), "fused", False)
    assert [kept is not None for kept in given] == [is_kept, False]


def test_eager_runs_once_and_not_if_it_was_measured() -> None:
    inputs, shared = make_inputs(CASE, "cpu"), SharedResults()
    assert shared.eager_outputs(inputs) is shared.eager_outputs(inputs)
    measured, shared = Outputs(inputs.dout), SharedResults()
    shared.keep_eager(measured)
    assert shared.eager_outputs(inputs) is measured


def test_a_score_has_the_mode_of_its_call() -> None:
    inputs = make_inputs(CASE, "cpu")
    exact = compute_reference(inputs)
    outputs = eager.BACKEND.run(inputs, False)
    for mode in ("default", "deterministic"):
        scores = score_backend(eager.BACKEND, outputs, exact, mode=mode)
        assert {score.mode for score in scores} == {mode}
