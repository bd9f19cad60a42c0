"""A script's own checkpoint: the small model takes what fits, and a file with unknown names is a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.rehearsal.execution import list_replaced
from attncheck.rehearsal.watcher import script_code
from attncheck.rehearsal.watcher.checkpoints import watch_checkpoints, watch_kept

Load = Callable[..., Any]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a function of a script that loads tensors."""
    original = torch.nn.Module.load_state_dict
    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    monkeypatch.setattr(script_code, "CODE", {})
    monkeypatch.setattr("attncheck.rehearsal.watcher.checkpoints.CODE", script_code.CODE)
    scope: dict[str, Any] = {"__file__": str(tmp_path / "train.py")}
    text = "def load(model, tensors, **options):\n    return model.load_state_dict(tensors, **options)\n"
    exec(compile(text, scope["__file__"], "exec"), scope)
    watch_checkpoints(torch.nn.Module)
    yield scope["load"]
    torch.nn.Module.load_state_dict = original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("prefix", "strict", "is_told"), [("module.", False, True), ("", False, False), ("other.x", False, False)]
)
def test_a_checkpoint_of_which_nothing_is_taken_is_told(load: Load, prefix: str, strict: bool, is_told: bool) -> None:
    tensors = {f"{prefix}{name}": torch.ones_like(value) for name, value in Model().state_dict().items()}
    load(Model(), tensors, strict=strict)
    assert bool(script_code.CODE) == is_told
    if is_told:
        (text,) = script_code.CODE["unloaded"]
        assert "train.py:2 takes none of 2 tensors" in text and 'its names begin with "module."' in text


def test_a_wrapped_model_has_other_names_than_its_checkpoint(load: Load) -> None:
    wrapped = torch.nn.ModuleDict({"module": Model()})
    load(wrapped, Model().state_dict(), strict=False)
    assert 'the model\'s names begin with "module."' in script_code.CODE["unloaded"][0]


def test_a_small_model_takes_what_fits(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"first.weight": torch.ones(2, 2), "second.weight": torch.ones(4, 4), "third.weight": torch.ones(2, 2)}
    with pytest.raises(RuntimeError):  # without the rehearsal's model it is the launch's own error
        load(Model(), tensors)
    monkeypatch.setenv("ATTNCHECK_ROWS", "rows")
    model = Model()
    load(model, tensors)
    assert bool((model.first.weight == 1).all()) and not bool((model.second.weight == 1).all())
    assert list_replaced(str(tmp_path)) == [
        "1 of 3 tensors of the script's checkpoint fit the small model: the others are left out"
    ]


KEEPING = """\
import copy
import torch

def train(model, optimizer):
    best, loss = None, 0.0
    for epoch in range(3):
        for value in model.parameters():
            value.grad = torch.ones_like(value)
        optimizer.step()
        if epoch == 0:
            {statement}
        state = model.state_dict()
        torch.save(state, "last")
    {end}

class Stopping:
    def restore(self, model):
        model.load_state_dict(self.best)
"""


@pytest.mark.parametrize(
    ("statement", "end", "name"),
    [
        ("loss, best = 1.0, model.state_dict()", "model.load_state_dict(best)", "best"),
        ("best = {k: v for k, v in model.state_dict().items()}", "torch.save(best, 'best')", "best"),
        ("Stopping.best = self = Stopping(); self.best = model.state_dict()", "self.restore(model)", "self.best"),
        ("best = copy.deepcopy(model.state_dict())", "model.load_state_dict(best)", ""),
        ("best = {k: v.cpu() for k, v in model.state_dict().items()}", "model.load_state_dict(best)", ""),
        ("best = model.state_dict(); torch.save(best, 'best')", "best = torch.load('best')", ""),
        ("best = model.state_dict(); best = None", "model.load_state_dict(best) if best else None", ""),
    ],
)
def test_weights_that_are_kept_must_not_change(
    statement: str, end: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    script, reports, handles = tmp_path / "train.py", list[str](), list[Any]()
    script.write_text(KEEPING.format(statement=statement, end=end))
    scope: dict[str, Any] = {"__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), scope)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    watch_kept(
        torch.nn.Module,
        lambda hook: handles.append(optimizer.register_step_post_hook(hook)),
        lambda check, violations: reports.extend(violations),
    )
    scope["train"](model, optimizer)
    assert [text.partition(" in train.py:11 ")[0] for text in reports] == [name] * bool(name)


@pytest.mark.parametrize(
    ("value", "count"), [("model.state_dict()", 1), ("{k: v.cpu() for k, v in model.state_dict().items()}", 0)]
)
def test_a_state_without_a_copy_restores_nothing(
    value: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step follows it: a launch that is taken to its end takes none. On a GPU, `cpu` copies."""
    for name in ("state_dict", "load_state_dict"):
        monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))
    reports = list[str]()
    watch_kept(torch.nn.Module, lambda hook: None, lambda check, violations: reports.extend(violations))
    watch_checkpoints(torch.nn.Module)
    script = tmp_path / "train.py"
    text = f"def train(model):\n    for epoch in range(2):\n        best = {value}\n    model.load_state_dict(best)\n"
    script.write_text(text)
    scope: dict[str, Any] = {"__file__": str(script)}
    exec(compile(text, str(script), "exec"), scope)
    scope["train"](Model())
    assert len(reports) == count and all(
        line.startswith("train.py:4 loads the model's own tensors") for line in reports
    )
