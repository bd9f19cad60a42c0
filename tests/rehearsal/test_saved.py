"""What a script saves after training is loaded again: planted faults, and saves that are right."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.watcher.saved import READ_BACK, SavedModels

transformers = pytest.importorskip("transformers")

SAVING = """\
import copy
import torch

def save(model, first, folder, fault):
    if fault == "bias":
        head = torch.nn.Linear(16, 32, bias=True)
        head.weight.data.copy_(model.lm_head.weight)
        model.set_output_embeddings(head)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    averaged = {name: value.clone().mul_(0.9) for name, value in model.state_dict().items()}
    states = {"prefix": state, "averaged": averaged}
    if fault == "autocast":
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    saved = {"first": first, "copy": copy.deepcopy(model)}.get(fault, model)
    saved.save_pretrained(folder, **({"state_dict": states[fault]} if fault in states else {}))
"""


def make_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, SavedModels]:
    """Return a small model that trains, its first weights, and what follows its saves."""
    monkeypatch.setenv("ATTNCHECK_CONTINUES", "")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    first = transformers.LlamaForCausalLM(config)
    first.load_state_dict(model.state_dict())
    recorder = SimpleNamespace(folder=str(folder), steps=[{}], trained=model, is_paused=False)
    return model, first, SavedModels(recorder)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("bias", "violations", "its class has no lm_head.bias"),
        ("prefix", "violations", "the files have no "),
        ("first", "warnings", "has the weights from before the first step"),
        ("averaged", "notes", READ_BACK),
        ("copy", "notes", READ_BACK),
        ("autocast", "notes", READ_BACK),
        ("", "notes", READ_BACK),
    ],
)
def test_a_saved_model_is_the_trained_one(
    fault: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, first, saved = make_models(tmp_path, monkeypatch)
    monkeypatch.setattr(type(model), "save_pretrained", type(model).save_pretrained)
    saved.watch(type(model))
    model.train()
    saved.keep_first()
    assert model.training and not saved._recorder.is_paused
    script = tmp_path / "train.py"
    script.write_text(SAVING)
    scope: dict[str, Any] = {"__file__": str(script)}
    exec(compile(SAVING, str(script), "exec"), scope)
    scope["save"](model, first, tmp_path / "saved", fault)
    (answer,) = [json.loads(path.read_text()) for path in tmp_path.glob("relations-*.json")]
    assert [*answer] == ["check", kind] and text in answer[kind][0] and "train.py:18" in answer[kind][0], answer


STATES = """\
import torch

def save(model, first, path, fault):
    state = {f"_orig_mod.{name}": value for name, value in model.state_dict().items()}
    averaged = {name: value * 0.9 for name, value in state.items()}
    head = {name: value for name, value in state.items() if "lm_head" in name}
    rest = {name: value for name, value in state.items() if "lm_head" not in name}
    states = {"first": first.state_dict(), "averaged": averaged, "head": head, "rest": rest}
    torch.save({"model": states.get(fault, state), "step": 5}, path)
"""


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("first", "warnings", "has the weights from before the first step"),
        ("rest", "warnings", "a state without lm_head.weight, which the launch trains"),
        ("", "notes", READ_BACK),
        ("averaged", "", ""),
        ("head", "", ""),
    ],
)
def test_a_saved_state_is_the_trained_one(
    fault: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, first, saved = make_models(tmp_path, monkeypatch)
    monkeypatch.setattr(torch, "save", torch.save)
    saved.watch_states(torch)
    saved.keep_first()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    script = tmp_path / "train.py"
    script.write_text(STATES)
    scope: dict[str, Any] = {"__file__": str(script)}
    exec(compile(STATES, str(script), "exec"), scope)
    before = model.lm_head.weight.clone()
    scope["save"](model, first, tmp_path / "model.pt", fault)
    answers = [json.loads(path.read_text()) for path in tmp_path.glob("relations-*.json")]
    assert [[*own] for own in answers] == [["check", kind]] * bool(kind), answers
    assert all(text in own[kind][0] and "train.py:9" in own[kind][0] for own in answers), answers
    assert model.lm_head.weight.equal(before)  # the launch's own model keeps its weights
