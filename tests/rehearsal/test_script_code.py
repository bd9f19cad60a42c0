"""The script's own code in a training, by what it computes; columns of the data that the trainer drops."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import data

from attncheck.rehearsal.watcher import absent, batches, script_code
from attncheck.rehearsal.watcher.modules import is_foreign
from attncheck.rehearsal.worker.checks.batch import CODE_TEXTS, _tell_code


class Trainer:
    """As transformers' Trainer, whose methods count as the script's, because this file is in no package."""

    _signature_columns = ("input_ids", "labels")

    def __init__(self, columns: list[str], removes: bool) -> None:
        self.train_dataset: Any = SimpleNamespace(column_names=columns)
        self.args = SimpleNamespace(remove_unused_columns=removes)
        self.data_collator, self.callback_handler = Collator(), SimpleNamespace(callbacks=[Averages()])

    def _set_signature_columns_if_needed(self) -> None:
        pass

    def compute_loss(self, inputs: Any) -> Any:
        return inputs.pop("weight", None)

    def create_scheduler(self) -> None:
        pass

    def evaluate(self) -> Any:
        return self.train_dataset["prompt"]  # from the data themselves, which have it


class Collator:
    @staticmethod
    def pad(rows: Any) -> Any:
        return rows

    def __call__(self, rows: Any) -> Any:
        return [row["labels"] for row in rows]


class Averages:
    @torch.no_grad()
    def on_step_end(self) -> None:
        pass

    def helper(self) -> None:
        pass


@pytest.mark.parametrize(
    ("columns", "removes", "dropped"),
    [
        (["input_ids", "labels", "weight", "prompt"], True, ["weight"]),
        (["input_ids", "labels", "weight"], False, []),
        (["input_ids", "labels", "text"], True, []),
    ],
)
def test_code_and_dropped_columns(
    columns: list[str], removes: bool, dropped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code: dict[str, list[str]] = {}
    monkeypatch.setattr(script_code, "CODE", code)
    script_code.note_trainer(Trainer(columns, removes))
    assert code["dropped"] == dropped
    names = {part: [text.partition(", ")[0] for text in texts] for part, texts in code.items()}
    assert names["data"] == ["Collator.pad", "Collator.__call__"]
    assert names["steps"] == ["Trainer.create_scheduler", "Averages.on_step_end"]
    assert "Trainer.compute_loss" in names["loss"] and all("test_script_code.py:" in text for text in code["loss"])


@pytest.mark.parametrize(("columns", "is_unused"), [(["messages", "text"], True), (["question", "text"], False)])
def test_a_formatting_function_to_no_effect(
    columns: list[str], is_unused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code: dict[str, list[str]] = {}
    monkeypatch.setattr(script_code, "CODE", code)
    trainer: Any = Trainer(columns, True)
    trainer._formatting_func = Collator.pad
    script_code.note_trainer(trainer)
    assert ("unused" in code) == is_unused
    record = SimpleNamespace(code=code | {"dropped": []})
    evidence: Any = SimpleNamespace(taken=[record])
    texts = _tell_code(evidence, CODE_TEXTS)
    assert len(texts) == is_unused and all("function Collator.pad, " in text for text in texts)


def test_functions_of_packages_are_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    code: dict[str, list[str]] = {}
    monkeypatch.setattr(script_code, "CODE", code)
    script_code.note_code("data", pytest.fixture)
    script_code.note_code("data", None)
    assert code == {}
    script_code.note_code("data", partial(Collator.pad, []))
    assert [text.partition(", ")[0] for text in code["data"]] == ["Collator.pad"]


def test_objects_with_every_attribute_are_no_functions() -> None:
    """As the calls that do nothing, in place of a package that is not installed."""

    class Idle:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Idle()

        def __call__(self) -> None:
            pass

    assert not is_foreign(Idle())


LOOPS = """
def train(loader, sampler, epochs):
    for epoch in range(epochs):
        MARK
        for batch in loader:
            pass
"""


@pytest.mark.parametrize(
    ("mark", "trains", "line"),
    [
        ("pass", True, ["loops.py:5"]),
        ("pass", False, []),
        ("sampler.set_epoch(epoch)", True, []),
        ("helper.begin(sampler, epoch)", True, []),
    ],
)
def test_a_loop_over_epochs_in_one_order(
    mark: str, trains: bool, line: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sampler of ranks draws the same order in each epoch, unless it is given the epoch; evaluations may do so."""
    code: dict[str, list[str]] = {}
    monkeypatch.setattr(script_code, "CODE", code)
    monkeypatch.setattr(absent, "_is_script_file", lambda name: name.startswith(str(tmp_path)))
    (tmp_path / "loops.py").write_text(LOOPS.replace("MARK", mark))
    helper: Any = ModuleType("loops")  # another file of the script
    helper.__file__, helper.begin = str(tmp_path / "helper.py"), lambda *given: None
    (tmp_path / "helper.py").write_text("def begin(sampler, epoch):\n    sampler.set_epoch(epoch)\n")
    if mark.startswith("helper"):
        monkeypatch.setitem(sys.modules, "loops", helper)
    sampler: Any = SimpleNamespace(shuffle=True, set_epoch=lambda epoch: None)

    class Loader:
        def __iter__(self) -> Any:
            script_code.note_order(sys._getframe(1), [sampler])
            return iter(())

    values: dict[str, Any] = {"__name__": "loops", "__file__": str(tmp_path / "loops.py"), "helper": helper}
    exec(compile((tmp_path / "loops.py").read_text(), str(tmp_path / "loops.py"), "exec"), values)
    with torch.set_grad_enabled(trains):
        values["train"](Loader(), sampler, 2)
    assert code.get("unset", []) == line
    assert len(_tell_code(SimpleNamespace(taken=[SimpleNamespace(code=code)]), CODE_TEXTS)) == len(line)  # type: ignore[arg-type]


def test_a_sampler_of_the_script_is_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Backwards(data.Sampler[int]):
        def __iter__(self) -> Any:
            return iter((2, 1, 0))

    code: dict[str, list[str]] = {}
    monkeypatch.setattr(script_code, "CODE", code)
    kind = data.dataloader._BaseDataLoaderIter
    for name in ("__init__", "_reset"):
        monkeypatch.setattr(kind, name, getattr(kind, name))  # both are put back
    batches.watch_epochs(str(tmp_path))(data.dataloader)
    rows: Any = ["0", "1", "2"]
    assert [int(row) for row in data.DataLoader(rows, sampler=Backwards(), collate_fn="".join)] == [2, 1, 0]
    assert ["Backwards" in text for text in code["data"]] == [True]
