"""Names that freeze layers of the small model freeze others of a larger one: a planted fault, and right names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.watcher import continuing, deepening

transformers = pytest.importorskip("transformers")

FREEZING = """\
import torch

def freeze(load, is_frozen, trained):
    model = load()
    model.to("cpu")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not is_frozen(name))
    trained += [value for value in model.parameters() if value.requires_grad]
    torch.optim.SGD([model.lm_head.weight])
    return model
"""


def begins(*numbers: int, end: str = "") -> Any:
    return lambda name: any(f"layers.{number}{end}" in name for number in numbers)


@pytest.mark.parametrize(
    ("is_frozen", "text"),
    [
        (begins(0, 1, 2, 3), "freeze layers 0, 1, 2, 3 also begin the names of 14 others"),
        (begins(1), "freeze layers 1 also begin the names of 10 others"),
        (begins(0, 1, 2, 3, end="."), ""),
        (begins(*range(10), end="."), ""),
        (begins(0), ""),
        (begins(*range(22), end="."), ""),
        (begins(*range(0, 24, 2), end="."), ""),
        (lambda name: "lm_head" not in name, ""),
    ],
)
def test_names_that_also_begin_those_of_later_layers(
    is_frozen: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNCHECK_CONTINUES", "")
    monkeypatch.setattr(deepening, "ASKED", [])
    monkeypatch.setattr(deepening, "read_scripts", lambda: FREEZING)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    recorder = SimpleNamespace(folder=str(tmp_path), is_paused=False)

    def load() -> Any:
        model: Any = transformers.LlamaForCausalLM(config)
        deepening.ask_deeper(recorder, model)
        return model

    scope: dict[str, Any] = {"__file__": str(tmp_path / "train.py")}
    exec(compile(FREEZING, scope["__file__"], "exec"), scope)
    trained = list[torch.Tensor]()
    model = scope["freeze"](load, is_frozen, trained)
    assert len(model.model.layers) == 2 and not continuing.FORKED
    answers = [json.loads(path.read_text()) for path in tmp_path.glob("relations-*.json")]
    assert [text in own["warnings"][0] for own in answers] == [True] * bool(text), answers
