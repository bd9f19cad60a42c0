"""What saving and merging change, measured on models of our own, and on the installed releases."""

from __future__ import annotations

import copy
import dataclasses
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import main, saving


def reinitialise(model: Any) -> Any:
    """Return a copy whose head was not loaded: the fault."""
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.lm_head.weight, std=0.02)
    return other


@pytest.mark.parametrize(("operation", "is_same"), [(copy.deepcopy, True), (reinitialise, False)])
def test_a_head_that_is_not_loaded_is_seen(operation: Any, is_same: bool) -> None:
    change = saving.measure_change(main.make_model, operation)["change"]
    assert (change < 1e-5) is is_same


def measure_operations(folder: Path) -> dict[tuple[str, str], float]:
    cases = list(saving.list_cases(str(folder), main.make_model))[:26]
    return {(name, operation): saving.measure_change(make, run)["change"] for name, operation, make, run in cases}


def test_this_transformers_keeps_a_model_by_each_operation(tmp_path: Path) -> None:
    changes = measure_operations(tmp_path)
    assert {name for name, _ in changes} == {"tied embeddings", "untied embeddings", saving.OWN_CLASS}
    assert len(changes) == 26 and max(changes.values()) < 1e-5


def test_an_operation_that_is_wrong_only_after_another_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def enlarge(model: Any) -> Any:
        model.is_new = True
        return model

    operations = {
        "given a larger vocabulary": enlarge,
        "initialised again": lambda model: reinitialise(model) if vars(model).get("is_new") else model,
    }
    monkeypatch.setattr(saving, "OPERATIONS", operations)
    changes = [
        saving.measure_change(make, run)["change"] > 0.02
        for _, _, make, run in [
            case
            for case in saving.list_cases(str(tmp_path), main.make_model)
            if case[1]
            in (
                "given a larger vocabulary, then initialised again",
                "initialised again, then given a larger vocabulary",
            )
        ]
    ]
    assert changes == [True, False] * 2


class Adapted(torch.nn.Module):
    """A module with an adapter: the part of PEFT that the cases call."""

    def __init__(self, base: torch.nn.Module, config: Any) -> None:
        super().__init__()
        self.base, self.names, self.config = base, config.modules_to_save or [], config
        self.scales = torch.nn.ParameterDict({"default": torch.nn.Parameter(torch.zeros(()))})
        self.base_model, self.peft_config = SimpleNamespace(set_adapter=lambda names: None), {"default": config}

    def forward(self, input_ids: Any) -> dict[str, Any]:
        return {"logits": self.base(input_ids=input_ids)["logits"] * (1 + sum(self.scales.values()))}

    def add_adapter(self, name: str, config: Any) -> None:
        self.scales[name] = torch.nn.Parameter(torch.tensor(0.2))

    def merge_and_unload(self) -> Any:
        merged = copy.deepcopy(self)
        if FAULT["kind"] == "merge":
            del merged.scales["another"]
        return merged


FAULT = {"kind": ""}


def install_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an imitation of PEFT; with the fault "prefix", it loads no module whose name has the adapter's prefix."""

    @dataclasses.dataclass
    class Config:
        target_modules: Any = None
        modules_to_save: Any = None
        use_dora: bool = False

    def load(model: Any, state: dict[str, Any]) -> None:
        model.load_state_dict(
            {n: v for n, v in state.items() if not (FAULT["kind"] == "prefix" and "lora_" in n)}, False
        )

    peft, mapping = ModuleType("peft"), ModuleType("peft.mapping")
    vars(peft).update(get_peft_model=Adapted, set_peft_model_state_dict=load)
    vars(peft)["get_peft_model_state_dict"] = lambda model: copy.deepcopy(model.state_dict())
    vars(mapping).update(PEFT_TYPE_TO_CONFIG_MAPPING={"LORA": Config}, PEFT_TYPE_TO_PREFIX_MAPPING={"LORA": "lora_"})
    peft.__spec__ = mapping.__spec__ = ModuleSpec("peft", None)
    for name, module in (("peft", peft), ("peft.mapping", mapping)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("", set()), ("prefix", {"modules_to_save=lora_head"}), ("merge", {"LORA", "LORA use_dora"})],
)
def test_adapters_of_every_kind_are_saved_and_merged(
    fault: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_peft(monkeypatch)
    monkeypatch.setitem(FAULT, "kind", fault)
    cases = list(saving.list_adapters())
    assert {name for name, *_ in cases} == {
        "LORA",
        "LORA use_dora",
        "modules_to_save=head",
        "modules_to_save=lora_head",
    }
    changed = {name for name, _, make, run in cases if saving.measure_change(make, run)["change"] > 0.02}
    assert changed == expected
