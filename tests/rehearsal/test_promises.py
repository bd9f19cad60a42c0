"""What adapters promise: neutral before training, and the same after they are switched off, loaded and merged."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import optimizer

from attncheck.rehearsal.watcher import adapters
from attncheck.rehearsal.watcher.adapters import PROMISES, watch_adapters


@dataclasses.dataclass
class Config:
    fault: str = ""
    rank: int = 8
    bias: str = "none"
    init_lora_weights: bool = dataclasses.field(default=True, metadata={"help": "True: the adapter is a no-op."})


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False)
        self.requires_grad_(False)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Any, use_cache: bool) -> tuple[Any]:
        return (self.head(self.embedding(input_ids)),)


class Adapted(torch.nn.Module):
    """A model with a matrix that is added to its head; a fault is named as the promise that it breaks."""

    def __init__(self, base: Model, fault: str = "") -> None:
        super().__init__()
        self.base, self.fault, self.is_on = base, fault, True
        self.matrix = torch.nn.Parameter(torch.full((4, 8), float(fault == "untrained")))

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.base.embedding

    def forward(self, input_ids: Any, use_cache: bool) -> tuple[Any]:
        change = self.base.embedding(input_ids) @ self.matrix
        return (self.base(input_ids, use_cache)[0] + change * self.is_on,)

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.is_on = self.fault == "switched off"
        yield
        self.is_on = True

    def save_pretrained(self, folder: str) -> None:
        torch.save(self.matrix.data * (self.fault != "loaded"), Path(folder) / "adapter")

    @classmethod
    def from_pretrained(cls, base: Model, folder: str) -> Adapted:
        loaded = cls(base)
        loaded.matrix.data = torch.load(Path(folder) / "adapter")
        return loaded

    def merge_and_unload(self) -> Model:
        self.base.head.weight.data += self.matrix.data.T * (self.fault != "merged")
        return self.base


def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, config: Config) -> dict[str, list[str]]:
    """Return the violations and warnings about a configuration's adapters."""
    monkeypatch.setenv("ATTNCHECK_CONTINUES", "")  # nothing is saved, and there is one epoch
    module: Any = SimpleNamespace(get_peft_model=lambda model, config: Adapted(model, config.fault))
    watch_adapters(SimpleNamespace(folder=str(folder), is_paused=False), module)
    module.get_peft_model(Model(), config)
    answers = [json.loads(path.read_text()) for path in folder.glob("relations-*.json")]
    return {kind: [text for own in answers for text in own[kind]] for kind in ("violations", "warnings")}


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_that_adapters_do_not_keep_is_named_with_the_setting_that_breaks_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ask(tmp_path, monkeypatch, Config(name, rank=4))
    (text,) = answers["violations" if name in ("untrained", "loaded") else "warnings"]
    assert PROMISES[name] in text and f"without fault={name}" in text
    assert sum(map(len, answers.values())) == 1


@pytest.mark.parametrize(
    "config", [Config(rank=4), Config("untrained", init_lora_weights=False), Config("switched off", bias="all")]
)
def test_adapters_that_keep_what_they_promise_are_no_fault(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(ask(tmp_path, monkeypatch, config).values())


class Loaded(torch.nn.Module):
    """Adapters that are loaded, of which the first stays active: with a fault it is trained in place of a later one."""

    fault = False

    def __init__(self) -> None:
        super().__init__()
        self.lora_A = torch.nn.ParameterDict()

    @classmethod
    def from_pretrained(cls, path: str, adapter_name: str = "default", is_trainable: bool = False) -> Loaded:
        model = cls()
        model.load_adapter(path, adapter_name, is_trainable)
        return model

    def load_adapter(self, path: str, adapter_name: str, is_trainable: bool = False) -> None:
        self.lora_A[adapter_name] = torch.nn.Parameter(torch.ones(1), requires_grad=is_trainable)
        if self.fault:
            first, *others = self.lora_A.values()
            first.requires_grad = is_trainable
            for value in others:
                value.requires_grad = False


@pytest.mark.parametrize(
    ("fault", "script", "count"), [(True, "", 1), (False, "", 0), (True, "model.set_adapter('task')", 0)]
)
def test_adapters_that_are_loaded_are_trained_as_requested(
    fault: bool, script: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges: list[Any] = []
    monkeypatch.setattr(optimizer, "register_optimizer_step_pre_hook", judges.append)
    monkeypatch.setattr(adapters, "read_scripts", lambda: script)
    kind: Any = type("PeftModel", (Loaded,), {"fault": fault})
    adapters.watch_loading(SimpleNamespace(folder=str(tmp_path)), SimpleNamespace(PeftModel=kind))
    model = kind.from_pretrained("style", adapter_name="style")
    model.load_adapter("task", adapter_name="task", is_trainable=True)
    judges[0]()
    lines = [text for path in tmp_path.glob("relations-*") for text in json.loads(path.read_text())["violations"]]
    assert len(lines) == count
    named = (
        "style was loaded with is_trainable=False and is trained, task was loaded with is_trainable=True and is frozen"
    )
    assert all(named in line for line in lines)
