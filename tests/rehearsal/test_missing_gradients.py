"""Which parameters count as those that no gradient reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.worker.checks import gradients
from attncheck.rehearsal.worker.checks.gradients import _find_own_factors, _list_missing
from attncheck.rehearsal.worker.definitions import Definition, computed_once


def list_missing(**observed: torch.Tensor) -> list[str]:
    """Return the missing ones of a weight and a bias of keys, which changes every score of a query equally."""
    ranks = [SimpleNamespace(trainable=("weight", "bias"))]
    evidence: Any = SimpleNamespace(step=SimpleNamespace(ranks=ranks), observed_gradients=observed)
    return _list_missing(evidence, {"weight": torch.ones(4), "bias": torch.full((4,), 1e-8)})


def test_a_gradient_that_is_only_rounding_may_be_zero() -> None:
    ones, zeros = torch.ones(4), torch.zeros(4)
    assert list_missing(weight=ones, bias=zeros) == []  # in bfloat16
    assert list_missing(weight=zeros, bias=zeros) == ["weight"]
    assert list_missing(weight=ones) == ["bias"]  # it has none at all


def test_ranks_that_multiply_their_parts_are_named_also_with_parameters_that_not_every_rank_has() -> None:
    """torch.chunk gives four ranks only three parts of six rows, and two of a bias with two."""
    before = {"weight": torch.ones(8, 2), "odd": torch.ones(6, 2), "bias": torch.ones(2)}
    factors = (0.5, 0.25, 1.0, 0.125)
    after = {**before, "weight": torch.cat([part * f for part, f in zip(before["weight"].chunk(4), factors)])}

    def find(**gradients: torch.Tensor) -> list[str]:
        record = SimpleNamespace(backward=before, gradients={**after, **gradients})
        evidence: Any = SimpleNamespace(step=SimpleNamespace(ranks=[record] * 4))
        return list(_find_own_factors(evidence))

    assert [text for text in find() if "by 0.5, 0.25, 1, 0.125" in text]
    assert not find(weight=before["weight"] / 2)


def test_the_script_s_code_in_the_model_is_named_if_no_gradient_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(trainable=("weight",), gradient_hooks={}, gradients={}, patches=("Own.forward",))
    evidence: Any = SimpleNamespace(step=SimpleNamespace(ranks=[record]), observed_gradients={})
    monkeypatch.setattr(gradients, "explain_loss", lambda _: SimpleNamespace(definition=None, reading=None))
    monkeypatch.setattr(gradients, "compute_gradients", lambda *_: {"weight": torch.ones(4)})
    monkeypatch.setattr(gradients, "fit_gradients", lambda *_: None)
    (text,) = gradients.run(evidence).violations
    assert text.startswith("no gradient reaches 1 of 1") and text.endswith("code in the model: Own.forward")


def test_an_answer_is_kept_for_one_evidence_and_definition() -> None:
    counted: list[Definition] = []

    @computed_once
    def count(evidence: Any, definition: Definition) -> int:
        counted.append(definition)
        return len(counted)

    evidences: list[Any] = [SimpleNamespace(computed={}) for _ in range(2)]
    first, second = evidences
    mean, other = Definition("step_tokens"), Definition("step_tokens", shift=2)
    assert [count(first, mean), count(first, Definition("step_tokens"))] == [1, 1]
    assert [count(first, other), count(second, mean), count(first, mean)] == [2, 3, 1]
