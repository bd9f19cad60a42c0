"""Router logits of this transformers' mixtures of experts, right and with a softmax that is planted."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import transformers

from attncheck.doctor.experiments.worker import routers

CHOSEN = ("mixtral", "olmoe", "qwen2_moe", "llama")


def measure(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    monkeypatch.setattr(auto, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", dict.fromkeys([*CHOSEN, "no_such_model"], ""))
    return {item["model_type"]: item for item in routers.measure_routers()}


def test_router_logits_of_this_transformers_are_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure(monkeypatch)
    assert "llama" not in measured, "it has no balancing loss"
    assert "KeyError" in measured.pop("no_such_model")["error"]
    assert [item["are_probabilities"] for item in measured.values()] == [False] * 3
    assert measured["olmoe"]["place"].endswith("transformers/models/olmoe/modeling_olmoe.py")


def test_a_softmax_in_a_router_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = transformers.OlmoeForCausalLM.forward

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        output = plain(self, *arguments, **options)
        output.router_logits = tuple(item.softmax(-1) for item in output.router_logits)
        return output

    monkeypatch.setattr(transformers.OlmoeForCausalLM, "forward", forward)
    measured = measure(monkeypatch)
    assert [name for name in CHOSEN[:3] if measured[name]["are_probabilities"]] == ["olmoe"]
