"""Which parameters count as those that no gradient reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from attncheck.rehearsal.worker.checks.gradients import _list_missing


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
