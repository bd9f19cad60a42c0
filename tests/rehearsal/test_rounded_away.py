"""Updates that would round to nothing at the launch's own learning rate, which a rehearsal replaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.core.rehearsal import UNDOCUMENTED, JobCut
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal.judged_run import _read_rates
from attncheck.rehearsal.worker.checks.update import _find_lost_state, _find_rounded_away
from tests.snapshots import laptop


@pytest.mark.parametrize(
    ("rate", "dtype", "kind", "is_lost"),
    [
        (5e-7, torch.bfloat16, "torch.optim.adamw.AdamW", True),
        (5e-7, torch.float32, "torch.optim.adamw.AdamW", False),
        (2e-5, torch.bfloat16, "torch.optim.adamw.AdamW", False),
        (5e-7, torch.bfloat16, "torch.optim.sgd.SGD", False),  # whose steps depend on the gradients' size
        (5e-7, torch.bfloat16, "torchao.optim.adam.AdamW8bit", False),  # which may round stochastically
        (0.0, torch.bfloat16, "torch.optim.adamw.AdamW", False),  # not known
    ],
)
def test_updates_that_round_to_nothing(rate: float, dtype: Any, kind: str, is_lost: bool) -> None:
    weight = (torch.randn(100, 100, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    record = SimpleNamespace(updates=[{"classes": [kind], "weights": {"head": weight}, "groups": []}])
    evidence: Any = SimpleNamespace(rates=(rate, rate), taken=(record,))
    texts = list(_find_rounded_away(evidence))
    assert len(texts) == is_lost and all("round to nothing" in text for text in texts)


@pytest.mark.parametrize(
    ("moment", "is_lost"),
    [(torch.zeros(3), False), ({"shape": (3,)}, False), (None, True)],  # kept, too large to be kept, missing
)
def test_moments_that_are_lost(moment: Any, is_lost: bool) -> None:
    state = {"exp_avg": moment} if moment is not None else {}
    first = SimpleNamespace(updates=[{"stateful": ["head"], "state": {"head": {}}}])
    later = SimpleNamespace(updates=[{"state": {"head": state}}])
    records: Any = [first, later]
    assert bool(list(_find_lost_state(records))) == is_lost


@pytest.mark.parametrize(("value", "rate"), [("5e-7", 5e-7), (".001", 1e-3), ("$RATE", 0.0)])
def test_the_rate_is_that_of_the_launch(value: str, rate: float) -> None:
    text = f"trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name a/b --learning_rate {value}\n"
    launches = read_launches(
        laptop(), Source("run.sh", text, "shell"), lambda name: Absent("not cached"), lambda path: None
    )
    assert _read_rates(launches[0], JobCut({"learning_rate": "0.005"}, "every", UNDOCUMENTED)) == [rate, 0.005]
    assert _read_rates(launches[0], JobCut({}, "every", UNDOCUMENTED)) == [rate, rate]
