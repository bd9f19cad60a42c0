"""What saving and merging change, measured on models of our own, and on the installed releases."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import main, saving


def reinitialise(model: Any) -> Any:
    """Return a copy whose head was not loaded: the fault."""
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.lm_head.weight, std=0.02)
    return other


@pytest.mark.parametrize(("operation", "is_same"), [(copy.deepcopy, True), (reinitialise, False)])
def test_a_head_that_is_not_loaded_is_seen(operation: Any, is_same: bool) -> None:
    change = saving.measure_change(main.make_model, operation)["change"]
    assert (change < 1e-5) is is_same


def test_this_transformers_gives_back_what_it_saved(tmp_path: Path) -> None:
    cases = list(saving.list_cases(str(tmp_path), main.make_model))
    assert [name for name, *_ in cases[:2]] == ["tied embeddings", saving.OWN_CLASS]
    for _, operation, make, run in cases[:2]:
        assert operation == "saved and loaded" and saving.measure_change(make, run)["change"] < 1e-5
