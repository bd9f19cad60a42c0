"""A launch is taken to its end after the last recorded step: it saves, and starts its next training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, dataloader

from attncheck.rehearsal.execution import list_left_out
from attncheck.rehearsal.watcher import hastening

LOOP = """\
def train(model, rows, optimizer, take):
    model.train()
    for epoch in range(1000):
        for batch in rows:
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            take()
    model.eval()
    return model(batch){end}
"""


class Model(torch.nn.Linear):
    calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(batch)

    def save_pretrained(self, folder: str) -> None: ...


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = dataloader._BaseDataLoaderIter
    monkeypatch.setenv("ATTNCHECK_WATCH", "")
    monkeypatch.setattr("atexit.register", lambda *arguments: None)
    for owner, name in ((torch.Tensor, "backward"), (torch.nn.Module, "__call__"), (loader, "__next__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.parametrize(
    ("end", "is_framework", "is_hastened"),
    [(", torch.save(batch, 'out')", False, True), ("", False, False), ("", True, True)],
)
def test_a_script_that_saves_is_taken_to_its_end(
    end: str, is_framework: bool, is_hastened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_framework:  # whose text is its console script's
        monkeypatch.setenv("ATTNCHECK_ROWS", "rows.jsonl")
    monkeypatch.setattr(hastening, "read_scripts", lambda: LOOP.format(end=end))
    recorder = SimpleNamespace(folder=str(tmp_path), is_paused=False)
    model, steps = Model(4, 1), list[torch.Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def take() -> None:
        steps.append(model.weight.detach().clone())
        if len(steps) == 5:
            hastening.hasten(recorder)
            if not recorder.is_paused:
                raise StopIteration

    rows: Any = torch.ones(80, 4)
    scope, loader = dict[str, Any](), DataLoader(rows, batch_size=2)
    exec(compile(LOOP.format(end=""), "train.py", "exec"), scope)
    if not is_hastened:
        with pytest.raises(StopIteration):
            scope["train"](model, loader, optimizer, take)
        return
    scope["train"](model, loader, optimizer, take)
    assert (tmp_path / "hastened").exists() and model.calls == 5 + 1 + 1  # the first again, and that in evaluation mode
    assert torch.equal(model.weight, steps[4]) and not torch.equal(model.weight, steps[3])


ENDING = """\
def run(loss):
    for step in range(2):
        {inside}
        loss.backward()
    {after}
run(loss)
"""


@pytest.mark.parametrize(
    ("inside", "after", "reported"),
    [
        ("pass", "model.save(loss)", "train.py:5 ends the launch with NameError: name 'model' is not defined"),
        ("pass", "raise RuntimeError('tensors share memory')", "train.py:5 ends the launch with RuntimeError"),
        ("model.save(loss)", "pass", ""),
        ("pass", "{}['eval_loss']", ""),
        ("pass", "None.item()", ""),
        ("pass", "import a_package_that_is_missing", ""),
        ("pass", "pass", ""),
    ],
)
def test_an_error_behind_the_training_is_reported(
    inside: str, after: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, watch, ends = tmp_path / "train.py", tmp_path / "watch", list[int]()
    watch.mkdir()
    script.write_text(ENDING.format(inside=inside, after=after))
    monkeypatch.setattr("os._exit", ends.append)
    monkeypatch.delattr("sys.last_value", raising=False)
    scope = {"__file__": str(script), "loss": SimpleNamespace(backward=lambda: None)}
    try:
        exec(compile(script.read_text(), str(script), "exec"), scope)
    except Exception as error:
        monkeypatch.setattr("sys.last_value", error, raising=False)
    del scope["__file__"]  # as Python does when the main module has ended
    hastening._end(str(watch))
    reports = [json.loads(path.read_text()) for path in watch.glob("relations-*.json")]
    assert ends == [0] and len(reports) == bool(reported)
    for own in reports:
        assert own["check"] == "run" and reported in own["warnings"][0]


STAGES = """\
def run(make, first, second):
    for options, resume in (first, second):
        make(options).train(resume_from_checkpoint=resume)
"""


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (({"num_train_epochs": 1}, None), ({"num_train_epochs": 1}, True), "violations"),
        (({"num_train_epochs": 3}, None), ({"num_train_epochs": 1}, "out/checkpoint-9"), "violations"),
        (({"num_train_epochs": 1}, None), ({"num_train_epochs": 2}, True), "second"),
        (({"num_train_epochs": 1}, None), ({"num_train_epochs": 1, "output_dir": "other"}, True), "second"),
        (({"num_train_epochs": 1}, None), ({"num_train_epochs": 1}, None), "second"),
    ],
)
def test_a_second_training_has_steps_left(
    first: Any, second: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, given = tmp_path / "watch", dict[int, Any]()
    watch.mkdir()
    monkeypatch.setattr("attncheck.rehearsal.watcher.relations.GIVEN", given)

    class Trainer:
        def __init__(self, options: dict[str, Any]) -> None:
            self.args = SimpleNamespace(output_dir="ours", num_train_epochs=3, max_steps=30)
            given[id(self.args)] = self.args, (), {"output_dir": "out", "max_steps": 30, **options}

        def train(self, **options: Any) -> None: ...

    hastening.watch_trainings(SimpleNamespace(folder=str(watch)), SimpleNamespace(Trainer=Trainer))
    scope: dict[str, Any] = {"__file__": str(tmp_path / "train.py")}
    exec(compile(STAGES, scope["__file__"], "exec"), scope)
    scope["run"](Trainer, first, second)
    reports = [json.loads(path.read_text()) for path in watch.glob("relations-*.json")]
    assert [[*own][1] for own in reports] == ["violations"] * (kind == "violations")
    assert bool(list_left_out(str(tmp_path))) == (kind == "second")
