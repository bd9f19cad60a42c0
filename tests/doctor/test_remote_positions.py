"""Positions that a model's own code counts in a buffer's dtype are seen; what the fix writes keeps them apart."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.doctor.probes.model import read_model

ROUNDS = "t = torch.arange(self.max_seq_len_cached, device=device, dtype=self.inv_freq.dtype)"


@pytest.mark.parametrize(
    ("line", "places"),
    [
        (ROUNDS, ("modeling_own.py:2",)),
        ("t = torch.arange(n, device=device, dtype=torch.float32)", ()),
        ("# " + ROUNDS.replace("arange", "ones"), ()),
    ],
)
def test_the_place_is_read_and_the_code_never_run(tmp_path: Path, line: str, places: tuple[str, ...]) -> None:
    config = {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "modeling_own.py").write_text(f"raise SystemExit\n{line}\n", encoding="utf-8")
    model = read_model(str(tmp_path))
    assert isinstance(model, Known) and model.value.rounded_positions == places


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
def test_bfloat16_rounds_positions_and_float32_does_not() -> None:
    import torch

    assert len(torch.arange(1024, dtype=torch.bfloat16).unique()) < 600
    assert len(torch.arange(1024, dtype=torch.float32).unique()) == 1024
