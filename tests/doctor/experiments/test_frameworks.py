"""The experiments on frameworks that build their trainer from settings: imitations of two, right and with a fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import transformers

from attncheck.doctor.experiments.worker import frameworks, main

FIELDS = {"model", "dataset", "attn_impl", "packing", "padding_free", "gradient_accumulation_steps"}


class FrameworkTrainer:
    """A trainer as a framework makes it of its settings and texts; `fault` is what it does wrong."""

    optimizer: Any

    def __init__(self, settings: dict[str, Any], texts: list[tuple[str, str]], packs: bool, fault: str) -> None:
        folder = settings.get("model_name_or_path") or settings["model"]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        encoded = [(tokenizer.encode(prompt), tokenizer.encode(answer)) for prompt, answer in texts]
        self.train_dataset = [
            {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer} for prompt, answer in encoded
        ]
        self.steps, self.packs, self.fault = settings["gradient_accumulation_steps"], packs, fault
        self.data_collator = SimpleNamespace(attn_implementation="eager")
        self.state = SimpleNamespace(log_history=[])

    def get_train_dataloader(self) -> list[dict[str, Any]]:
        documents = [row["input_ids"] for row in self.train_dataset]
        row = torch.tensor([[token for document in documents for token in document]])
        if not self.packs:
            return [{"input_ids": row, "attention_mask": torch.ones_like(row)}]
        restarting = torch.cat([torch.arange(len(document)) for document in documents])[None]
        is_faulty = self.fault == f"no borders under {self.data_collator.attn_implementation}"
        return [{"input_ids": row, "position_ids": torch.arange(row.shape[1])[None] if is_faulty else restarting}]

    def create_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)

    def train(self, **_: object) -> None:
        labels = sum(label != -100 for row in self.train_dataset for label in row["labels"])
        for row in self.train_dataset:
            ids, targets = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
            loss = torch.nn.functional.cross_entropy(self.model(ids).logits[0, :-1], targets, reduction="sum") / labels
            (loss / (self.steps if self.fault == "divides twice" else 1)).backward()
        self.optimizer.step()


def imitate_llamafactory(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def run_exp(settings: dict[str, Any]) -> None:
        rows = json.loads(Path(settings["dataset_dir"], "rows.json").read_text("utf-8"))
        texts = [(row["instruction"], row["output"]) for row in rows]
        FrameworkTrainer(settings, texts, settings["neat_packing"], fault).train(resume_from_checkpoint=None)

    tuner: Any = ModuleType("tuner")
    tuner.run_exp = run_exp
    monkeypatch.setattr(transformers.trainer, "Trainer", FrameworkTrainer)  # its trainers inherit it
    monkeypatch.setitem(sys.modules, "llamafactory.train.tuner", tuner)


def imitate_swift(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    class Arguments(SimpleNamespace):
        __dataclass_fields__: ClassVar[dict[str, Any]] = {}

    kinds = {name: "List[str]" if name == "dataset" else "str" for name in FIELDS}
    Arguments.__dataclass_fields__ |= {name: SimpleNamespace(type=kind) for name, kind in kinds.items()}

    class SwiftSft:
        args_class = Arguments

        def __init__(self, args: Arguments) -> None:
            self.settings: dict[str, Any] = vars(args)
            self.args = SimpleNamespace(attn_impl=args.attn_impl)
            self._prepare_model_tokenizer()

        def _prepare_model_tokenizer(self) -> None:
            assert self.args.attn_impl == "sdpa", "flash attention cannot be loaded on a CPU"
            self.model = SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa"))

        def train(self, trainer: Any) -> None:
            raise AssertionError("it is not to train yet")

        def main(self) -> None:
            lines = Path(self.settings["dataset"][0]).read_text("utf-8").splitlines()
            messages = [json.loads(line)["messages"] for line in lines]
            texts = [(prompt["content"], answer["content"]) for prompt, answer in messages]
            trainer = FrameworkTrainer(self.settings, texts, self.settings["packing"], fault)
            trainer.data_collator.attn_implementation = self.args.attn_impl
            self.train(trainer)

    pipelines: Any = ModuleType("pipelines")
    pipelines.SwiftSft = SwiftSft
    monkeypatch.setitem(sys.modules, "swift.pipelines", pipelines)


FRAMEWORKS = [
    (imitate_llamafactory, frameworks.make_llamafactory_trainer),
    (imitate_swift, frameworks.make_swift_trainer),
]


@pytest.mark.parametrize(("imitate", "make"), FRAMEWORKS)
@pytest.mark.parametrize(("fault", "ratio"), [("", 1), ("divides twice", 0.5)])
def test_the_gradient_of_a_frameworks_own_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, imitate: Any, make: Any, fault: str, ratio: float
) -> None:
    imitate(monkeypatch, fault)
    main.save_model(str(tmp_path))
    assert main.measure_step(make, str(tmp_path), 1, 1)["ratio"] == pytest.approx(1, abs=1e-3)
    divided = main.measure_step(make, str(tmp_path), 2, 1)
    assert divided["ratio"] == pytest.approx(ratio, abs=1e-3) and divided["cosine"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("imitate", "make"), FRAMEWORKS)
@pytest.mark.parametrize("fault", ["", "no borders under flash_attention_2"])
def test_the_borders_of_a_frameworks_own_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, imitate: Any, make: Any, fault: str
) -> None:
    imitate(monkeypatch, fault)
    main.save_model(str(tmp_path))
    packed = main.measure_batch(make, str(tmp_path), "packing", "flash_attention_2")
    assert packed == {"keys": ["input_ids", "position_ids"], "separates": not fault}
    assert main.measure_batch(make, str(tmp_path), "padded", "sdpa")["keys"] == ["attention_mask", "input_ids"]
    assert main.measure_batch(make, str(tmp_path), "packing", "sdpa")["separates"]


def test_a_layout_that_a_framework_does_not_have_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no padding_free rows"):
        frameworks.make_llamafactory_trainer(str(tmp_path), [], "padding_free", "sdpa", 1, 1)
