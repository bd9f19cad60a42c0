"""The terms of a script's loss are asked in which direction they act: planted faults, and right ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.watcher import attention, objective

OWN = """\
import torch

def compute_loss(model, inputs, fault=""):
    logits = model(inputs["x"])
    margin = inputs.get("margin")
    kl = (logits ** 2).mean(-1)
    achieved = logits[:, 0] - logits[:, 1]
    base = -torch.nn.functional.logsigmoid(achieved - (margin if fault != "margin" else -margin)).mean()
    bonus = logits.abs().mean()
    sign = -1 if fault == "kl" else 1
    return base + sign * 0.1 * kl.mean() + (1 if fault == "bonus" else -1) * 0.01 * bonus

def loop(model, inputs, judge, fault):
    import sys
    logits = model(inputs["x"])
    kl_loss = (logits ** 2).mean()
    margin = logits[:, 0] - logits[:, 1]
    loss = (-1 if fault == "kl" else 1) * kl_loss - margin.mean()
    judge(loss, sys._getframe())
    loss.backward()
"""
INPUTS = {"x": torch.arange(12.0).view(4, 3), "margin": torch.ones(4)}


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """Return the names of a script."""
    script = tmp_path / "train.py"
    script.write_text(OWN)
    scope: dict[str, Any] = {"__file__": str(script)}
    exec(compile(OWN, str(script), "exec"), scope)
    return scope


def read(folder: Path) -> list[tuple[str, str]]:
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("relations-*.json"))]
    return [
        (kind, text) for own in documents for kind in ("violations", "warnings", "notes") for text in own.get(kind, ())
    ]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("kl", "violations", "falls as kl grows"),
        ("margin", "violations", "falls as margin grows"),
        ("bonus", "violations", "grows as bonus grows"),
        ("", "notes", "acts on margin, kl, bonus as"),
    ],
)
def test_a_term_acts_as_its_name_says(fault: str, kind: str, words: str, own: dict[str, Any], tmp_path: Path) -> None:
    trainer = SimpleNamespace(compute_loss_func=None, compute_loss=own["compute_loss"])
    objective.watch_terms(SimpleNamespace(folder=str(tmp_path)), trainer)
    model = torch.nn.Linear(3, 2)
    for _ in range(2):
        trainer.compute_loss(model, dict(INPUTS), fault=fault).backward()
    ((given, text),) = read(tmp_path)
    assert given == kind and words in text


@pytest.mark.parametrize("fault", ["kl", ""])
def test_a_term_of_a_loop_acts_as_its_name_says(fault: str, own: dict[str, Any], tmp_path: Path) -> None:
    judge = objective.watch_loop(SimpleNamespace(folder=str(tmp_path)))
    own["loop"](torch.nn.Linear(3, 2), INPUTS, judge, fault)
    ((kind, text),) = read(tmp_path)
    assert kind == ("warnings" if fault else "notes") and "kl_loss" in text


class Policy:
    """A policy trainer of a script, whose loss has a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def _get_per_token_logps(self) -> tuple[torch.Tensor, None]:
        return torch.full((2, 3), -1.0, requires_grad=True), None

    def _compute_loss(self, inputs: Any) -> torch.Tensor:
        values, _ = self._get_per_token_logps()
        ratio = (values - inputs["old_per_token_logps"]).exp()
        advantages, distance = inputs["advantages"].unsqueeze(1), inputs["ref_per_token_logps"] - values
        clipped = ratio.clamp(0.8, 1.2)
        choose = torch.max if self.fault == "max" else torch.min
        loss = -choose(ratio * advantages, clipped * advantages)
        if self.fault == "cispo":
            loss = -clipped.detach() * advantages * values
        kl = distance.exp() - distance - 1
        result: torch.Tensor = (loss + (-0.1 if self.fault == "divergence" else 0.1) * kl).mean()
        return result


@pytest.mark.parametrize(
    ("fault", "kinds", "words"),
    [
        ("max", ["violations"], "takes the larger objective"),
        ("divergence", ["violations", "notes"], "its divergence has the wrong sign"),
        ("", ["notes"], "stops where"),
        ("cispo", [], ""),
    ],
)
def test_a_policy_loss_stops_where_a_response_is_likelier(
    fault: str, kinds: list[str], words: str, tmp_path: Path
) -> None:
    policy = Policy(fault)
    inputs = {name: torch.full((2, 3), -1.0) for name in ("old_per_token_logps", "ref_per_token_logps")}
    inputs["advantages"] = torch.tensor([1.0, -1.0])
    objective.ask_policy_loss(str(tmp_path), policy, "_get_per_token_logps", policy._compute_loss, inputs)
    lines = read(tmp_path)
    assert [kind for kind, _ in lines] == kinds and all(words in text for _, text in lines[:1])


@pytest.mark.parametrize(
    ("reduction", "factor", "size", "count"),
    [
        ("mean", 3.6, 64, 1),
        ("batchmean", 3.6, 64, 0),
        ("mean", 64.0, 64, 0),  # the script undoes it
        ("mean", 3.6, 10, 0),  # of classes, not a vocabulary
    ],
)
def test_a_divergence_that_is_divided_by_the_vocabulary(
    reduction: str, factor: float, size: int, count: int, tmp_path: Path
) -> None:
    functional: Any = SimpleNamespace(kl_div=torch.nn.functional.kl_div)
    recorder = SimpleNamespace(
        folder=str(tmp_path), is_paused=False, models=[SimpleNamespace(config=SimpleNamespace(vocab_size=64))]
    )
    objective.watch_divergence(recorder, functional)
    scope = {"__file__": str(tmp_path / "train.py"), "functional": functional}
    text = "def distil(own, right, reduction):\n    return functional.kl_div(own, right, reduction=reduction)\n"
    exec(compile(text, scope["__file__"], "exec"), scope)
    own = torch.randn(6, size, requires_grad=True)
    for _ in range(2):
        term = scope["distil"](own.log_softmax(-1), torch.randn(6, size).softmax(-1), reduction)
        (factor * term).backward()
    lines = [line for path in tmp_path.glob("relations-*") for line in json.loads(path.read_text())["violations"]]
    assert len(lines) == count and all("kl_div in train.py:2" in line for line in lines)


@pytest.mark.parametrize(
    ("mask", "ones", "count"),
    [
        ("attention_mask.bool()", [1, 1, 0], 1),
        ("attention_mask.bool()", [0, 0, 1], 0),  # the script's own, of padding
        ("attention_mask == 0", [1, 1, 0], 0),
        ("None", [1, 1, 0], 0),
    ],
)
def test_a_padding_mask_that_hides_the_tokens(mask: str, ones: list[int], count: int, tmp_path: Path) -> None:
    kind = type("Pool", (torch.nn.MultiheadAttention,), {})
    attention.watch_padding(SimpleNamespace(folder=str(tmp_path)), kind)
    scope: dict[str, Any] = {"__file__": str(tmp_path / "train.py")}
    text = (
        f"def pool(model, states, attention_mask):\n    return model(states, states, states, key_padding_mask={mask})\n"
        "def step(model, states, batch, attention_mask):\n    return pool(model, states, attention_mask)\n"
    )
    exec(compile(text, scope["__file__"], "exec"), scope)
    full = torch.full((3,), ones[0])
    for _ in range(2):
        batch = {"input_ids": torch.tensor([[4, 5, 6], [7, 8, 0]])}
        model = kind(4, 1, batch_first=True)
        scope["step"](model, torch.randn(2, 3, 4), batch, torch.stack([full, torch.tensor(ones)]))
    lines = [line for path in tmp_path.glob("relations-*") for line in json.loads(path.read_text())["violations"]]
    assert len(lines) == count and all(line.startswith("train.py:2 gives attention_mask") for line in lines)
