"""Settings of adapters, and learning rates, that a launch states: those without an effect are named."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal import effects, judged_run
from attncheck.rehearsal.watcher import absent
from attncheck.rehearsal.watcher import effects as watcher
from attncheck.rehearsal.watcher.adapters import watch_adapters
from attncheck.rehearsal.watcher.effects import keep_given, watch_trainer

LAUNCH = SimpleNamespace(words=())
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


@dataclasses.dataclass
class Arguments:
    divergence: str = dataclasses.field(
        default="reverse_kl", metadata={"help": "Type of divergence: `reverse_kl` or `js`."}
    )
    label_smoothing: float = dataclasses.field(default=0.0, metadata={"help": "The label smoothing."})
    smooth_mask: bool | None = dataclasses.field(default=None, metadata={"help": "Which mask is smoothed."})
    max_length: int = dataclasses.field(default=64, metadata={"help": "The maximum length of rows of a loss."})
    schedule: str = dataclasses.field(default="linear", metadata={"help": "The scheduler."})
    warmup: int = dataclasses.field(default=0, metadata={"help": "Steps of the learning rate scheduler."})
    learning_rate: float = 0.1
    logging_loss: int = 10
    save_strategy: str = "steps"
    eval_strategy: str = "no"
    derived: float = 0.0

    def __post_init__(self) -> None:
        self.derived = 2 * self.label_smoothing


class Rows:
    """Rows as of a data set of datasets, with a function that is called for each row that is read."""

    def __init__(self, transform: Any = None) -> None:
        kwargs = {"transform": transform}
        self.format: dict[str, Any] = {"type": "custom" if transform else None, "format_kwargs": kwargs}

    def with_format(self, kind: None) -> Rows:
        return Rows()

    def __iter__(self) -> Iterator[list[float]]:
        row = [1.0, 2.0, 3.0, 4.0]
        return iter([(self.format["format_kwargs"]["transform"] or list)(row)] * 4)


def double(row: list[float]) -> list[float]:
    return [2 * value for value in row]


class Trainer:
    """Trains as transformers' Trainer does, with the fault that a test gives."""

    fault = ""

    def __init__(self, model: Any, args: Arguments, train_dataset: Any, compute_loss_func: Any = None) -> None:
        self.model, self.args, self.train_dataset, self.loss_func = model, args, train_dataset, compute_loss_func
        if self.fault == "transform":
            self.train_dataset = train_dataset.with_format(None)

    def training_step(self, model: Any, inputs: Any) -> Any:
        outputs = model(torch.tensor(inputs[: self.args.max_length]))
        loss = outputs.square().mean() * (1 - (self.args.derived if self.fault != "smoothing" else 0))
        if self.args.divergence == "js" and self.fault != "divergence":
            loss = loss + outputs.mean()
        if self.loss_func is not None and self.fault != "function":
            loss = self.loss_func(outputs)
        loss.backward()
        return loss.detach()

    def train(self) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
        for step, row in enumerate(self.train_dataset):
            if self.args.schedule == "linear" or self.fault != "schedule":
                optimizer.param_groups[0]["lr"] = self.args.learning_rate * min(1, step / max(self.args.warmup, 1))
            self.training_step(self.model, row)
            optimizer.step()
            optimizer.zero_grad()


def try_settings(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    stated: str,
    function: Any = None,
    transform: Any = None,
    **settings: Any,
) -> list[str]:
    """Return the lines on the settings of a trainer."""
    monkeypatch.setenv("ATTNCHECK_STATED", stated or " ".join([*settings, "compute_loss_func"]))
    watched: Any = type("Arguments", (Arguments,), {})
    keep_given(watched)
    trainer: Any = type("Trainer", (Trainer,), {"fault": fault})
    monkeypatch.setattr(absent, "_is_script_file", lambda name: False)  # this file is the trainer's
    watch_trainer(SimpleNamespace(folder=str(folder), is_paused=False), trainer)
    options = {"compute_loss_func": function} if function else {}
    made = trainer(torch.nn.Linear(4, 2), watched(**settings), train_dataset=Rows(transform), **options)
    assert made.args.derived == 2 * settings.get("label_smoothing", 0.0)
    records = [json.loads(path.read_text()) for path in folder.glob("effects-*.json")]
    assert not any(record["error"] for record in records)
    return [*effects.list_effects(records), *effects.list_unshown(records)]


def test_what_a_script_reads_itself_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = ModuleType("own")
    own.__file__ = str(tmp_path / "own.py")
    (tmp_path / "own.py").write_text("print(args.divergence)")
    monkeypatch.setitem(sys.modules, "own", own)
    monkeypatch.setitem(sys.modules, "none", None)  # as Python allows, and a name that must not be imported
    monkeypatch.setattr(absent, "_is_script_file", lambda name: name == own.__file__)
    names = watcher._list_read(Trainer)
    assert "compute_loss_func" in names
    assert not {"divergence", "unknown_" + "name"} & names


def scale(outputs: Any) -> Any:
    return 3 * outputs.square().mean()


@pytest.mark.parametrize(
    ("fault", "settings", "text"),
    [
        ("divergence", {"divergence": "js", "label_smoothing": 0.1}, "Arguments(divergence=js) has no effect:"),
        ("smoothing", {"label_smoothing": 0.1}, "Arguments(label_smoothing=0.1) has no effect:"),
        ("schedule", {"warmup": 3, "schedule": "constant"}, "Arguments(warmup=3) has no effect together with schedule"),
        ("", {"label_smoothing": 0.1, "function": scale}, "Arguments(label_smoothing=0.1) has no effect together with"),
        ("transform", {"transform": double}, "the trainer's train_dataset.with_transform=double has no effect:"),
        ("function", {"function": scale}, "the trainer's compute_loss_func=scale has no effect:"),
    ],
)
def test_a_setting_of_a_trainer_without_an_effect_is_named(
    fault: str, settings: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = try_settings(tmp_path, monkeypatch, fault, "", **settings)
    assert [line[: len(text)] for line in lines] == [text]


@pytest.mark.parametrize(
    ("stated", "settings", "count"),
    [
        ("", {"divergence": "js", "label_smoothing": 0.1, "warmup": 3}, 0),
        ("", {"function": scale}, 0),
        ("", {"transform": double}, 0),
        ("", {"logging_loss": 5}, 0),  # of no part that is observed
        ("", {"smooth_mask": True}, 1),  # a choice that may be the default's, and has no effect as either
        ("", {"max_length": 32}, 1),  # longer than the rows: no fault, but a remark
        ("other", {"schedule": "cosine"}, 0),  # not stated by the launch
        ("warmup -schedule", {"warmup": 3, "schedule": "constant"}, 0),  # of the rehearsal
    ],
)
def test_settings_of_a_trainer_that_act_or_need_not_are_no_fault(
    stated: str, settings: dict[str, Any], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "schedule" if "-" in stated else ""
    lines = try_settings(tmp_path, monkeypatch, fault, stated, **settings)
    assert len(lines) == count


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
    idle = {"name": "rank_pattern", "value": "{'q': 2}", "kind": "LoraConfig", "help": "", "company": ""}
    record = {"idle": [idle], "left": [], "error": "", "layers": "None", "astray": []}
    (watch / "effects-0.json").write_text(json.dumps(record))
    (watch / "steps-0.json").write_text(json.dumps({"steps": [{"rates": [2e-4]}]}))
    monkeypatch.setattr(effects, "find_script", lambda launch: None)
    stage: Any = SimpleNamespace(folder=str(tmp_path), read=SimpleNamespace(recognised=SimpleNamespace(launch=LAUNCH)))
    results = judged_run._add_effects(stage, [CheckResult("run"), CheckResult("update", outcome)])
    assert [result.check for result in results if result.warnings] == [name]
