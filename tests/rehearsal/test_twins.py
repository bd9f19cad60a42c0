"""A launch's own twin: the same rows, with a change that is neutral, must give the same loss and gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core import codec
from attncheck.core.experiments import HALVES
from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.core.preferences import Preference
from attncheck.core.rehearsal import DataForm, Objective
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting, execution, reading, second_run, staging
from attncheck.rehearsal.watcher.stand_ins import leave_kernels
from attncheck.rehearsal.worker import records
from attncheck.rehearsal.worker.materials import make_data
from attncheck.rehearsal.worker.records import ModelCall, RankRecord
from attncheck.rehearsal.worker.twins import compare, compare_steps
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Pool
from tests.rehearsal.staging import ForkServer, make_argv, make_materials, nightly
from tests.snapshots import laptop

WHOLE = "--per_device_train_batch_size 4 --gradient_accumulation_steps 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials") / "made")


def ask(server: ForkServer, folder: Path, tmp_path: Path, fault: str, is_defined: bool = False) -> CheckResult:
    """Return the answer for our own training script, with two micro-batches of two rows and with one of four."""
    folders = [tmp_path / name for name in ("first", "twin")]
    for watch, options in zip(folders, ("", WHOLE)):
        watch.mkdir()
        ended = server.run(make_argv(folder, options, 3), {"PLANTED_FAULT": fault}, watch, 1)
        assert ended["statuses"] == [0], ended
    sent: list[dict[str, Any]] = []
    how = {"change": HALVES, "is_defined": is_defined}
    compare({"items": ["twin"], "folders": folders, "how": how}, sent.append)
    return codec.read(CheckResult, sent[-1]["answer"])


@pytest.mark.parametrize(
    ("fault", "is_defined", "answer", "text"),
    [
        ("", False, "pass", "give 1 times the gradient (cosine 1.0000)"),
        nightly("not_divided_by_accumulation", False, "fail", " times the gradient (cosine 0.9"),
        (
            "divided_by_accumulation_twice",
            False,
            "fail",
            "give 0.5 times the gradient (cosine 1.0000); losses differ first",
        ),
        nightly("mean_of_batches", False, "warn", "a row's part depends on the other rows of its micro-batch"),
        nightly("mean_of_batches", True, "pass", "a row's part depends on the other rows of its micro-batch"),
    ],
)
def test_what_accumulating_changes(
    fault: str, is_defined: bool, answer: str, text: str, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    result = ask(server, folder, tmp_path, fault, is_defined)
    assert judge_result(result) == answer, result
    assert text in "\n".join((*result.violations, *result.warnings, *result.notes))


def make_record(tokens: list[list[int]] | None = None, scale: float = 1.0, **tensors: Any) -> RankRecord:
    ids = torch.tensor(tokens or [[1, 2, 3], [4, 5, 6]])
    description = {"dtype": "torch.float32", "autocast": ""}
    hidden = ids[..., None].float().repeat(1, 1, 2)
    call = ModelCall(0, 0, {"input_ids": ids, **tensors}, {}, hidden, description)
    gradients = {"w": torch.ones(3) * scale}
    code = {"trainer": ["Trainer.compute_loss, trl/trainer.py:7"]}
    return RankRecord(0, 1, (call,), (2.0,), gradients, ("w",), {"w": torch.ones(3)}, (), (), (), code=code)


def test_documents_of_a_joined_row_are_the_same_rows() -> None:
    joined = make_record([[4, 5, 6, 1, 2, 3]], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    padded = make_record([[9, 1, 2, 3], [4, 5, 6, 9]], attention_mask=mask)
    assert judge_result(compare_steps(([joined], [padded]), 1, "padding_free", False)) == "pass"


CHANGED = {
    "labels": make_record(scale=2.0, labels=torch.tensor([[1, 2, -100], [4, 5, 6]])),
    "hidden states": make_record(scale=2.0),
    "losses": replace(make_record(scale=2.0), losses=(3.0,)),
    "gradients": make_record(scale=2.0),
}
CHANGED["hidden states"].calls[0].hidden.mul_(2)  # type: ignore[union-attr]


@pytest.mark.parametrize("part", CHANGED)
def test_the_first_part_that_differs_is_named(part: str) -> None:
    labels: dict[str, Any] = {"labels": torch.tensor([[1, 2, 3], [4, 5, 6]])} if part == "labels" else {}
    result = compare_steps(([CHANGED[part]], [make_record(**labels)]), 1, "precompute_ref_log_probs", True)
    (text,) = result.violations
    assert f"{part} differ first" in text and "give 2 times the gradient" in text
    assert result.notes == ("the trainer's loss: Trainer.compute_loss, trl/trainer.py:7",)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ([], "other rows"),
        ([make_record([[1, 2, 3], [4, 5, 7]])], "other rows"),
        ([replace(make_record(), weights={"w": torch.zeros(3)})], "other weights"),
        ([make_record(scale=0.0)], "no gradient"),
    ],
)
def test_what_cannot_be_compared(other: list[RankRecord], reason: str) -> None:
    result = compare_steps(([make_record()], other), 1, HALVES, False)
    assert result.outcome == "skipped" and reason in result.reason


def read(text: str) -> ReadLaunch:
    source = Source("run.sh", f"{text}\n", "shell")
    (launch,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    return launch


ACCUMULATES = "--gradient_accumulation_steps 8 --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ("", []),
        (ACCUMULATES, [HALVES]),
        (f"{ACCUMULATES} --precompute_ref_log_probs true", [HALVES, "precompute_ref_log_probs"]),
        ("--gradient_checkpointing true --use_liger_kernel true", ["gradient_checkpointing"]),  # liger needs a GPU
        ("--gradient_checkpointing false", []),
    ],
)
def test_the_neutral_settings_of_a_launch(options: str, changes: list[str], tmp_path: Path) -> None:
    launch = read(f"trl dpo --model_name_or_path m --dataset_name d --output_dir o {options}")
    materials = cutting.make_materials(launch, str(tmp_path), 30, False, 2)
    cut = cutting.cut_job(launch, materials)
    request = reading.Request((), lambda name: Absent("no"), lambda source: lambda path: None)
    stage = staging.Stage(
        launch, str(tmp_path), materials, ExecutionTarget("python"), request, print, Pool("python", 1)
    )
    twins = dict(second_run._iter_twins(stage, cut))
    assert list(twins) == changes
    for name, twin in twins.items():
        changed = {key: value for key, value in twin.sets.items() if cut.sets.get(key) != value}
        sizes = {"per_device_train_batch_size": "4", "gradient_accumulation_steps": "1"}
        assert changed == ({name: "true"} if name == second_run.LIGER else sizes if name == HALVES else {name: "false"})


def test_ligers_losses_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", torch.compile)  # undone at the end
    module = SimpleNamespace(_apply_liger_kernel_to_instance=None)
    leave_kernels(module)
    assert module._apply_liger_kernel_to_instance is None, "on a GPU nothing is left out"
    monkeypatch.setenv("ATTNCHECK_LIGER", second_run.LIGER)
    leave_kernels(module)
    of_liger = eval("compile(len)", {"__name__": "liger_kernel.losses", "compile": torch.compile})
    assert callable(module._apply_liger_kernel_to_instance) and of_liger is len is not torch.compile(len)


@pytest.mark.parametrize(
    ("objective", "couples"),
    [
        (Objective(), False),
        (Objective(normalisations=("batch_tokens",)), True),
        (Objective(normalisations=("batch_tokens",), is_documented=False), False),
        (Objective(preference=Preference("sigmoid")), False),
        (Objective(preference=Preference("kto")), True),
        (Objective(preference=Preference("simpo", chosen_weight=1.0)), True),
    ],
)
def test_losses_that_couple_rows_as_documented(objective: Objective, couples: bool) -> None:
    assert objective.couples_rows == couples


def test_a_classifiers_labels_are_no_tokens(tmp_path: Path) -> None:
    ids = torch.tensor([[1, 2, 3]])
    call = {"after_losses": 0, "tensors": {"input_ids": ids, "labels": ids % 2}, "options": {}}
    calls = [{**call, "predicts_tokens": False}, call]
    names = [set(read.tensors) for read in records._iter_calls({"rank": 0, "calls": calls})]
    assert names == [{"input_ids", "classes"}, {"input_ids", "labels"}]


@pytest.mark.parametrize(
    ("form", "columns"),
    [("preference", {"prompt", "chosen", "rejected"}), ("implicit_preference", {"chosen", "rejected"})],
)
def test_a_reward_models_rows_have_the_prompt_inside(form: DataForm, columns: set[str]) -> None:
    _, rows = make_data(4, 0, form)
    assert {*rows[0]} == columns
    assert len(rows[0]["chosen"]) == len(rows[0]["rejected"]) == 4 - len(columns)


@pytest.mark.nightly
def test_what_is_drawn_before_a_seed_is_the_same_in_each_run(tmp_path: Path) -> None:
    execution._lay_folders(str(tmp_path))
    command = [sys.executable, "-c", "import torch; print(torch.initial_seed())"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "entry"), "ATTNCHECK_WATCH": str(tmp_path / "job" / "watch")}
    runs = [
        subprocess.run(command, env={**environ, **more}, capture_output=True, text=True, check=True).stdout
        for more in ({}, {"RANK": ""}, {"RANK": "1"}, {"ATTNCHECK_SEED": "1"})
    ]
    assert runs[0] == runs[1] and runs[0] not in runs[2:]
