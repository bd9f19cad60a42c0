"""Settings of adapters, and learning rates, that a launch states: those without an effect are named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal import effects, judged_run
from attncheck.rehearsal.watcher.effects import watch_adapters

LORA_PLUS = """\
from peft.optimizers import create_loraplus_optimizer
create_loraplus_optimizer(model, AdamW, lr=2e-4, loraplus_lr_ratio=16.0, loraplus_lr_embedding=1e-6)
stage_two(lr=1e-3, head_lr=1e-2)
"""


@dataclasses.dataclass
class LoraConfig:
    target_modules: list[str] | None = None
    layers_to_transform: list[int] | None = None
    rank_pattern: dict[str, int] = dataclasses.field(default_factory=dict)
    r: int = 8


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=2)
        names = ("q_proj", "v_proj")
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in names}) for _ in range(2)
        )
        self.requires_grad_(False)


def adapt(model: Model, config: LoraConfig, fault: str) -> Model:
    """Add a matrix to each module that a configuration names, as `get_peft_model` does."""
    layers = config.layers_to_transform
    for number, layer in enumerate(model.layers):
        is_named = layers is None or fault == "layers_ignored" or (number in layers) is (fault != "other_layers")
        for name in (config.target_modules or ("q_proj",)) if is_named else ():
            rank = config.r if fault == "ranks_ignored" else config.rank_pattern.get(name, config.r)
            layer[name].lora_A = torch.nn.Parameter(torch.zeros(rank, 4))  # type: ignore[index]
    return model


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, config: LoraConfig, fault: str) -> list[str]:
    """Return the lines on a configuration's settings."""
    monkeypatch.setenv("ATTNCHECK_CONTINUES", "saves")
    module: Any = SimpleNamespace(get_peft_model=adapt)
    watch_adapters(SimpleNamespace(folder=str(folder), is_paused=False), module)
    model = module.get_peft_model(Model(), config, fault)
    assert any(value.requires_grad for value in model.parameters())
    return [*effects.list_effects([json.loads(path.read_text()) for path in folder.glob("effects-*.json")])]


STATED = LoraConfig(["q_proj", "v_proj"], [1], {"q_proj": 2})


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("layers_ignored", "LoraConfig(layers_to_transform=[1]) has no effect"),
        ("ranks_ignored", "LoraConfig(rank_pattern={'q_proj': 2}) has no effect"),
        ("other_layers", "LoraConfig(layers_to_transform=[1]) trains 2 parameters of layers that it does not name"),
    ],
)
def test_a_setting_of_adapters_that_does_not_act_on_what_it_names_is_named(
    fault: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(tmp_path, monkeypatch, STATED, fault)[0].startswith(text)


@pytest.mark.parametrize(
    "config", [STATED, LoraConfig(["q_proj"]), LoraConfig(layers_to_transform=[0, 1]), LoraConfig()]
)
def test_settings_that_act_and_stated_defaults_are_no_fault(
    config: LoraConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(tmp_path, monkeypatch, config, "") == []


@pytest.mark.parametrize(
    ("rates", "names"),
    [
        ([2e-4, 3.2e-3], ["loraplus_lr_embedding"]),
        ([2e-4, 1e-6], []),
        ([5e-5], []),  # a schedule, or another stage
    ],
)
def test_a_rate_that_no_parameter_has_is_named(
    rates: list[float], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LORA_PLUS)
    monkeypatch.setattr(effects, "find_script", lambda launch: script)
    read: Any = SimpleNamespace(recognised=SimpleNamespace(launch=None))
    assert [line.partition("=")[0] for line in effects.list_idle_rates(read, rates)] == names


@pytest.mark.parametrize(("outcome", "name"), [("ok", "update"), ("skipped", "run")])
def test_a_setting_without_an_effect_is_said_with_the_updates_or_the_run(
    outcome: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    record = {"kind": "LoraConfig", "idle": {"rank_pattern": "{'q': 2}"}, "layers": "None", "astray": []}
    (watch / "effects-0.json").write_text(json.dumps(record))
    (watch / "steps-0.json").write_text(json.dumps({"steps": [{"rates": [2e-4]}]}))
    monkeypatch.setattr(effects, "find_script", lambda launch: None)
    stage: Any = SimpleNamespace(folder=str(tmp_path), read=SimpleNamespace(recognised=SimpleNamespace(launch=None)))
    results = judged_run._add_effects(stage, [CheckResult("run"), CheckResult("update", outcome)])
    assert [result.check for result in results if result.warnings] == [name]
