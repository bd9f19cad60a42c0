"""A trainer's evaluation is tried twice in a fork of its training, and leaves training mode on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.watcher import evaluations
from attncheck.rehearsal.watcher.modules import call_before
from attncheck.rehearsal.watcher.recorder import RECORDED_STEPS, Recorder

EVALUATING = """\
def train(model, take_step, restores, begins):
    model.train(begins)
    for step in range(6):
        take_step(model(model.weight).sum())
        if step == 3:
            model.eval()
            model.train(restores)
"""


@pytest.mark.parametrize(("restores", "begins", "count"), [(False, True, 1), (True, True, 0), (False, False, 0)])
def test_an_evaluation_leaves_training_mode_on(
    restores: bool, begins: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(str(tmp_path))
    monkeypatch.setattr(torch.nn.Module, "eval", call_before(torch.nn.Module.eval, recorder.note_evaluation))
    model, script = torch.nn.Linear(2, 2), tmp_path / "train.py"
    recorder.trained, scope = model, dict[str, Any](__file__=str(script))
    recorder.steps = [{}] * RECORDED_STEPS
    exec(compile(EVALUATING, str(script), "exec"), scope)

    def take_step(loss: torch.Tensor) -> None:
        recorder.add_loss(loss)
        recorder.steps.append({})

    scope["train"](model, take_step, restores, begins)
    texts = [text for path in tmp_path.glob("relations-*") for text in json.loads(path.read_text())["violations"]]
    assert len(texts) == count and not recorder.faults
    assert all("from step 8 onwards" in text and "in train.py:6" in text for text in texts)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.embedding(input_ids)[..., 0] * attention_mask).sum() / attention_mask.sum()
        return loss


class Evaluating:
    """Evaluates as transformers' Trainer does, with the fault that a test gives."""

    def __init__(self, fault: str, trained: Any, rows: Any) -> None:
        strategy = "no" if fault == "unevaluated" else "epoch"
        self.args = SimpleNamespace(
            device="cpu", per_device_eval_batch_size=8, metric_for_best_model=None, eval_strategy=strategy
        )
        self.model, self.train_dataset, self.eval_dataset, self.fault = Model(), trained, rows, fault
        self.count = 0
        self.callback_handler = SimpleNamespace(callbacks=[SimpleNamespace(on_evaluate=make_rows)])

    def evaluate(self, rows: Any) -> dict[str, float]:
        self.count += 1
        self.model.train(self.fault == "mode")
        order = [rows[number]["input_ids"] for number in range(len(rows))]
        if self.fault == "order":
            order = sorted(order, key=lambda ids: sum(ids) * self.count % 17)
        if self.fault == "drawn":
            order = [[*ids[:-1], self.count] for ids in order]
        if self.fault in ("averaged", "restored"):
            self.model.embedding.weight.data *= 0.5
        if self.fault == "restored":
            self.model.embedding.weight.data *= 2.0
        if self.fault == "error":
            raise ValueError("no such column")
        pairs = [order[number : number + 2] for number in range(0, len(order), 2)]
        sizes = [max(map(len, pair)) for pair in pairs]
        batches = [torch.tensor([[*ids, *[0] * (size - len(ids))] for ids in own]) for own, size in zip(pairs, sizes)]
        losses = [self.model(input_ids=batch, attention_mask=batch != 0) for batch in batches]
        factor = self.count if self.fault == "weights" else 1
        return {"eval_loss": factor * float(sum(own**2 for own in losses)), "eval_runtime": 1.0}

    def get_eval_dataloader(self, rows: Any) -> list[Any]:
        return [rows]

    def get_batch_samples(self, batches: Iterator[Any], count: int, device: str) -> tuple[list[Any], None]:
        return [next(batches)], None

    def _prepare_inputs(self, rows: Any) -> Any:
        return rows

    def compute_loss(self, model: Model, rows: Any, num_items_in_batch: None) -> float:
        return self.evaluate(rows)["eval_loss"] * (2 if self.fault == "halved" else 1)

    def _determine_best_metric(self, metrics: dict[str, float], trial: None) -> None:
        metrics[self.args.metric_for_best_model]


def make_rows(first: int, count: int, fault: str = "") -> list[dict[str, list[int]]]:
    prompt = [2] if fault == "reworded" else [1]
    rows = [[*range(first + n, first + n + 9 + n % 3)] for n in range(count)]
    return [{"input_ids": prompt + ids, "completion_mask": [0] + [1] * len(ids)} for ids in rows]


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("mode", "violations", "in training mode"),
        ("metric", "violations", "metric_for_best_model=eval_f1 is not one of eval_loss"),
        ("order", "warnings", "it joins 2 other rows in a batch each time"),
        ("weights", "warnings", "two evaluations of the same rows and weights give"),
        ("halved", "warnings", "a batch of 8 rows has the evaluation loss"),
        ("error", "notes", "evaluating ends with ValueError: no such column"),
        ("rows", "warnings", "12 of 12 rows of the evaluation are those of training rows"),
        ("stream", "warnings", "12 of 12 rows of the evaluation are those of training rows"),
        ("reworded", "warnings", "12 of 12 rows' targets of the evaluation"),
        (
            "averaged",
            "violations",
            "an evaluation changes 1 of 1 parameters of the trained model, with Evaluating",
        ),
        ("several", "notes", "an evaluation of 8 rows gives eval_loss"),
        ("unevaluated", "notes", "an evaluation of 8 rows gives eval_loss"),
        ("restored", "notes", "an evaluation of 8 rows gives eval_loss"),
        ("drawn", "notes", "an evaluation of 8 rows gives eval_loss"),
        ("", "notes", "an evaluation of 8 rows gives eval_loss"),
    ],
)
def test_an_evaluation_runs_and_is_repeated(
    fault: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CONTINUES", ""), ("ROWS", "rows"), ("WATCH", str(tmp_path))):
        monkeypatch.setenv(f"ATTNCHECK_{name}", value)
    (tmp_path / "data-set-1").touch()
    trained: Any = make_rows(30 if fault not in ("rows", "stream", "reworded") else 3, 12)
    if fault == "stream":
        trained = map(dict, trained)
    trainer = Evaluating(fault, trained, make_rows(3, 12, fault))
    if fault == "several":
        trainer.eval_dataset = {"first": trainer.eval_dataset}
    if fault in ("metric", "several", "unevaluated"):
        trainer.args.metric_for_best_model = "eval_f1"
    evaluations.ask_evaluation(SimpleNamespace(folder=str(tmp_path), is_paused=False), trainer)
    (answer,) = [json.loads(path.read_text()) for path in tmp_path.glob("relations-*.json")]
    assert kind in answer and text in " ".join(answer[kind]), answer
    assert fault in ("drawn", "") or kind == "notes" or {"violations", "warnings"} & answer.keys() == {kind}, answer


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (["data-set-1"], True),
        (["data-set-1", "absent-split-train"], True),
        (["data-set-1", "absent-split-train", "absent-split-test"], False),
        (["data-set-1", "data-set-2"], False),
        (["data-set-1", "absent-split-all"], False),
        ([], False),
    ],
)
def test_rows_of_several_files_are_the_same_here(
    names: list[str], is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNCHECK_ROWS", "rows")
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    for name in names:
        (tmp_path / name).touch()
    assert evaluations.has_one_source() == is_one
