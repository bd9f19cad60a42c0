"""A launch that asks for reproducible training is run twice: what differs first is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.rehearsal.worker.records import ModelCall, RankRecord, StepRecord
from attncheck.rehearsal.worker.repeating import compare_runs
from tests.conftest import Run

ENVIRONMENTS = os.environ.get("ATTNCHECK_REHEARSAL_PYTHONS", "")  # its "trl": transformers 5.17.0 and accelerate
SCRIPT = Path(__file__).parent / "scripts" / "trainer.py"
COMMAND = (
    "python trainer.py --model_name_or_path Qwen/Qwen2.5-7B --data_path data.jsonl --output_dir out "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5 --max_length 2048 "
    "--full_determinism true"
)


def make_record(rank: int = 0) -> RankRecord:
    call = ModelCall(rank, 0, {"input_ids": torch.tensor([[1, 2, 3]])}, {}, torch.ones(1, 3, 4), {})
    gradients, weights = {"w": torch.ones(2), "v": torch.ones(3)}, {"w": torch.ones(2)}
    return RankRecord(rank, 2, (call,), (5.0, 5.5), gradients, ("w", "v"), weights, (), (), ())


def change_call(record: RankRecord, **fields: Any) -> RankRecord:
    return replace(record, calls=(replace(record.calls[0], **fields),))


STEPS = [StepRecord(((5.0,), (5.5,)), ([1, 2],)), StepRecord(((4.0,), (4.5,)), ([3, 4],))]
PARTED: dict[str, tuple[Callable[[RankRecord], RankRecord], str]] = {
    "data": (lambda r: change_call(r, tensors={"input_ids": torch.tensor([[1, 3, 2]])}), "gets different tokens"),
    "weights": (lambda r: replace(r, weights={"w": torch.zeros(2)}), "training starts from different weights"),
    "forward": (lambda r: change_call(r, hidden=torch.ones(1, 3, 4) + 1e-6), "the forward pass is not reproducible"),
    "loss": (lambda r: replace(r, losses=(5.0, 5.5000001)), "the same hidden states give different losses"),
    "backward": (
        lambda r: replace(r, gradients={"w": torch.ones(2), "v": torch.ones(3) + 1e-6}),
        "the backward pass is not reproducible, in 1 of 2 parameters, v",
    ),
}


def test_runs_that_are_alike() -> None:
    ranks = [make_record(0), make_record(1)]
    result = compare_runs((ranks, STEPS), ([make_record(0), make_record(1)], STEPS[:1]))
    assert result.outcome == "ok" and not result.violations
    assert result.notes == ("bitwise identical: 4 gradients of the first step, losses of 1 steps",)


@pytest.mark.parametrize("name", PARTED)
def test_where_two_runs_part_is_named(name: str) -> None:
    spoil, text = PARTED[name]
    result = compare_runs(([make_record(0), make_record(1)], STEPS), ([make_record(0), spoil(make_record(1))], STEPS))
    assert text in result.violations[0] and "rank 1" in result.violations[0]


def test_a_later_step_is_named() -> None:
    other = [STEPS[0], replace(STEPS[1], losses=((4.0,), (4.6,)))]
    result = compare_runs(([make_record()], STEPS), ([make_record()], other))
    assert result.violations == (
        "the first step is identical in both runs, but step 2 is not: losses of 4.5 and then 4.6 on rank 1",
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("", ""),
        ("order", "the first step gets different tokens: the data's order does not depend on the seed alone"),
        ("backward", "the backward pass is not reproducible, in 1 of"),
        ("late", "the first step is identical in both runs, but step 3 is not: losses of"),
    ],
)
def test_a_launch_that_asks_for_determinism(fault: str, text: str, attncheck: Run, tmp_path: Path, marker: str) -> None:
    python = Path(ENVIRONMENTS) / "trl" / "bin" / "python"
    if not ENVIRONMENTS or not python.exists():
        pytest.skip("ATTNCHECK_REHEARSAL_PYTHONS names no folder with trl/bin/python")
    shutil.copy(SCRIPT, tmp_path)
    options = ("--device", "cpu", "--no-fix", "--format", "json", "--python", str(python))
    environment = {**os.environ, "PLANTED_FAULT": fault}
    process = attncheck("smoke", *options, "--", *COMMAND.split(), timeout=500, env=environment)
    report = json.loads(process.stdout)
    findings = [finding for finding in report["findings"] if finding["code"] == "ATN437"]
    [result] = [r for r in report["rehearsal"]["launches"][0]["results"] if r["check"] == "repeat"]
    if not fault:
        assert findings == [] and result["notes"][0].startswith("alike bit for bit")
        return
    assert len(findings) == 1 and text in findings[0]["message"], result
