"""A script's own functions are asked by relations that hold for all such functions: planted faults, and right ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.rehearsal import effects, judged_run
from attncheck.rehearsal.watcher import relations

LAUNCH = SimpleNamespace(words=())
PAD = 0
ROWS = [{"input_ids": [1, *range(2, 4 + n % 5)], "prompt": 2 + n % 2} for n in range(12)]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ATTNCHECK_CONTINUES", "")
    (tmp_path / "watch").mkdir()
    return SimpleNamespace(folder=str(tmp_path / "watch"), is_paused=False, models=[])


def read(recorder: Any) -> dict[str, list[str]]:
    """Return the lines of all answers, by kind."""
    documents = [json.loads(path.read_text()) for path in sorted(Path(recorder.folder).glob("relations-*.json"))]
    kinds = ("violations", "warnings", "notes")
    return {kind: lines for kind in kinds if (lines := [x for own in documents for x in own.get(kind, ())])}


class LlamaForCausalLM(torch.nn.Module):
    config = SimpleNamespace(vocab_size=64)


def shifted(prediction: Any) -> dict[str, float]:
    tokens, labels = prediction.predictions.argmax(-1)[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((tokens == labels)[labels != -100].mean()), "rows": len(labels)}


def unshifted(prediction: Any) -> dict[str, float]:
    tokens, labels = prediction.predictions, prediction.label_ids
    return {"accuracy": float((tokens == labels)[labels != -100].mean())}


def with_padding(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]).mean())}


def counted(prediction: Any) -> dict[str, float]:
    return {"tokens": float((prediction.label_ids != -100).sum())}


def losses(prediction: Any) -> dict[str, float]:
    logits, labels = torch.tensor(prediction.predictions)[:, :-1], torch.tensor(prediction.label_ids)[:, 1:]
    return {"loss": float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels)), "name": "loss"}  # type: ignore[dict-item]


def take_argmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


@pytest.mark.parametrize(
    ("metrics", "prepare", "kinds"),
    [
        (unshifted, take_argmax, ["violations"]),
        (with_padding, None, ["warnings"]),
        (shifted, None, ["notes"]),
        (losses, None, ["notes"]),
        (counted, None, []),
        (lambda prediction: {"accuracy": prediction.inputs.sum()}, None, []),  # which ends without inputs
    ],
)
def test_metrics_are_best_for_a_model_that_predicts_each_label(
    metrics: Any, prepare: Any, kinds: list[str], recorder: Any
) -> None:
    pytest.importorskip("transformers")
    labels = torch.arange(48).view(4, 12).where(torch.arange(12) > 3, -100)
    trainer = SimpleNamespace(
        args=SimpleNamespace(), model=LlamaForCausalLM(), compute_metrics=metrics, eval_dataset=[1],
        preprocess_logits_for_metrics=prepare, prediction_step=json.dumps,
        get_eval_dataloader=lambda: iter([{"labels": labels}]),
    )  # fmt: skip
    relations.ask_metrics(recorder, trainer)
    assert [*read(recorder)] == kinds, read(recorder)


@pytest.mark.parametrize(
    ("metrics", "best", "is_greater", "kinds"),
    [
        (shifted, "eval_accuracy", False, ["violations"]),
        (losses, "loss", True, ["violations"]),
        (shifted, "eval_accuracy", True, ["notes"]),
        (losses, "loss", False, ["notes"]),
        (None, "eval_accuracy", False, ["warnings"]),
        (None, "eval_loss", False, []),
        (None, "eval_rewards/accuracies", True, []),
        (None, "eval_rewards/rejected", False, []),
        (None, "quality", False, []),
        (None, None, None, []),
    ],
)
def test_the_best_checkpoint_has_the_best_metric(
    metrics: Any, best: str | None, is_greater: bool | None, kinds: list[str], recorder: Any
) -> None:
    pytest.importorskip("transformers")
    labels = torch.arange(48).view(4, 12).where(torch.arange(12) > 3, -100)
    trainer = SimpleNamespace(
        args=SimpleNamespace(metric_for_best_model=best, greater_is_better=is_greater), model=LlamaForCausalLM(),
        compute_metrics=metrics, eval_dataset=[1], preprocess_logits_for_metrics=None, prediction_step=json.dumps,
        get_eval_dataloader=lambda: iter([{"labels": labels}]),
    )  # fmt: skip
    relations.ask_metrics(recorder, trainer)
    assert [*read(recorder)] == kinds, read(recorder)


def test_the_metric_that_a_script_chooses_by_is_read_as_it_is_written(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal replaces it, because it evaluates nothing."""
    args = SimpleNamespace(metric_for_best_model=None, greater_is_better=None)
    given = {"metric_for_best_model": "eval_accuracy", "greater_is_better": False}
    monkeypatch.setattr(relations, "GIVEN", {id(args): (args, (), given, {})})
    relations.ask_metrics(recorder, SimpleNamespace(args=args, model=None, compute_metrics=None))
    assert [*read(recorder)] == ["warnings"]


def collate(rows: list[dict[str, Any]], fault: str = "") -> dict[str, torch.Tensor]:
    """Return a padded batch whose prompts have no labels."""
    size = (min if fault == "shortest" else max)(len(row["input_ids"]) for row in rows)
    rows = [{**row, "input_ids": row["input_ids"][:size]} for row in rows]
    ids = torch.tensor([row["input_ids"] + [PAD] * (size - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (size - len(row["input_ids"])) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    for number in range(len(rows)):
        labels[number, : rows[0 if fault == "first_prompt" else number]["prompt"]] = -100
    mask = torch.ones_like(mask) if fault == "visible_padding" else mask
    if fault == "left":
        ids, labels, mask = (
            torch.stack([row.roll(int(size - kept.sum())) for row, kept in zip(own, mask)])
            for own in (ids, labels, mask)
        )
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [("first_prompt", ["violations"]), ("shortest", ["warnings"]), ("", []), ("visible_padding", []), ("left", [])],
)
def test_a_row_trains_the_same_in_any_batch(fault: str, kinds: list[str], recorder: Any) -> None:
    own: Callable[[Any], Any] = lambda rows: collate(rows, fault)
    relations.ask_collator(recorder, ROWS, own)
    assert [*read(recorder)] == kinds, read(recorder)


@pytest.mark.parametrize("kind", ["violations", "warnings"])
def test_what_a_function_does_wrong_is_said_of_its_check_or_of_the_run(
    kind: str, recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relations.report(recorder.folder, "update", **{kind: ["a line"]})
    monkeypatch.setattr(effects, "find_script", lambda launch: None)
    stage: Any = SimpleNamespace(folder=str(tmp_path), read=SimpleNamespace(recognised=SimpleNamespace(launch=LAUNCH)))
    results = judged_run._add_effects(stage, [CheckResult("run"), CheckResult("update", "skipped")])
    failed = {result.check: judge_result(result) for result in results}
    assert failed == (
        {"run": "pass", "update": "fail"} if kind == "violations" else {"run": "warn", "update": "skipped"}
    )
