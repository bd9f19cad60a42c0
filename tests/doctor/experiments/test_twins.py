"""Twins: a trainer of our own, right and with one fault each, is compared with the same trainer after one change."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from attncheck.core.experiments import Experiments, TwinMeasurement
from attncheck.core.facts import Known, MissingFact
from attncheck.doctor.experiments.worker import main, twin_makers, twins
from attncheck.doctor.rules.transformers import neutral_change_trains_otherwise as rule
from tests import snapshots as s


@dataclass
class Config:
    """What our trainer takes, besides transformers' arguments."""

    loss_type: str = "sum"
    alpha: float | None = None
    padding_free: bool = False
    max_length: int = 64
    margin: str = ""  # whether rows have this column
    use_liger_loss: bool = False


class OurTrainer:
    """Its loss is the mean over rows of the summed, averaged or weighted loss of their tokens, with the named fault."""

    optimizer: Any

    def __init__(self, folder: Path, config: Config, fault: str, rows: list[list[int]], per_device: int, steps: int):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
        self.config, self.fault, self.baseline, self.micro_batches = config, fault, 0.0, steps
        self.args = SimpleNamespace(max_steps=1, per_device=per_device, gradient_accumulation_steps=steps)
        self.train_dataset = rows

    def save_model(self, folder: str) -> None:
        if self.fault == "names shared weights":  # as safetensors refuses
            raise RuntimeError("Some tensors share memory")

    def _get_train_sampler(self) -> Any:
        return torch.utils.data.RandomSampler(self.train_dataset)

    def create_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def train(self) -> None:
        order = list(self._get_train_sampler())
        batches = [order[at : at + self.args.per_device] for at in range(0, len(order), self.args.per_device)]
        for step in range(self.args.max_steps):
            window = batches[step * self.args.gradient_accumulation_steps :][: self.args.gradient_accumulation_steps]
            self.micro_batches = len(window)
            for batch in window:
                loss = self.compute_loss(self.model, self.collate([self.train_dataset[number] for number in batch]))
                (loss / len(window)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    pad_token = main.PAD

    def collate(self, rows: list[list[int]]) -> dict[str, Any]:
        pad = functools.partial(torch.nn.utils.rnn.pad_sequence, [torch.tensor(row) for row in rows], batch_first=True)
        mask = (pad(padding_value=-1) != -1).long()
        batch = {
            "input_ids": pad(padding_value=self.pad_token),
            "labels": pad(padding_value=-100),
            "attention_mask": mask,
        }
        if self.fault == "masks by token":
            batch["labels"][batch["input_ids"] == self.pad_token] = -100
        if self.config.margin:
            batch["margin"] = torch.tensor([row[0] / 10 for row in rows])
        if self.fault == "pairs with itself":
            batch |= {f"kl_{name}": value.flip(0) for name, value in batch.items() if name != "margin"}
        return batch

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        ids, labels = inputs["input_ids"], inputs["labels"]
        logits = model(input_ids=ids, attention_mask=inputs["attention_mask"]).logits[:, :-1]
        tokens = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
        counts = (labels[:, 1:] != -100).sum(1)
        rows = tokens.sum(1)
        if "margin" in inputs:
            margin = inputs["margin"] if self.fault == "couples by margin" else inputs["margin"][:, None]
            rows = torch.nn.functional.softplus(rows[:, None] / 50 - margin)
        if self.config.loss_type == "mean":
            rows = rows / (tokens.shape[1] if self.fault == "counts padding" else counts)
        if self.config.alpha is not None:
            is_lost = self.fault == "loses alpha" and self.config.padding_free
            rows = rows * (1 if is_lost else 1 + self.config.alpha * counts)
        if self.fault == "running baseline":
            self.baseline = self.baseline / 2 + float(rows.detach().mean())
            rows = (rows - self.baseline) ** 2
        loss = rows.mean()
        if self.fault == "not divided" or (self.fault == "liger is not divided" and self.config.use_liger_loss):
            loss = loss * self.args.gradient_accumulation_steps
        if self.fault == "divides by all steps":
            loss = loss * self.micro_batches / self.args.gradient_accumulation_steps
        if self.fault == "pads only" and not self.config.padding_free and self.config.loss_type == "mean":
            raise RuntimeError("The size of tensor a must match the size of tensor b")
        return loss


def make_trainer(
    folder: Path, fault: str, lengths: Any, per_device: int, steps: int, settings: dict[str, Any]
) -> OurTrainer:
    is_end, settings = twins.PAD_IS_END in settings, {k: v for k, v in settings.items() if k != twins.PAD_IS_END}
    config = Config(**settings)
    rows = [[int(word[1:]) for word in row["completion"].split()] for row in twins.write_rows(lengths)[twins.ANSWERS]]
    rows = [[*row, main.EOS][: config.max_length] for row in rows]
    trainer = OurTrainer(folder, config, fault, rows, per_device, steps)
    trainer.pad_token = main.EOS if is_end else main.PAD
    return trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twins")
    twin_makers.save_models(str(folder), main.make_model, main._make_tokenizer)
    return folder


def measure(folder: Path, fault: str) -> list[dict[str, Any]]:
    make, is_liger = functools.partial(make_trainer, folder, fault), "liger" in fault
    return twin_makers.measure_trainer("ours", "", [make], Config, is_liger)


def find_changes(folder: Path, fault: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what differs in our trainer, by setting and change."""
    found = measure(folder, fault)
    assert not [item for item in found if item.get("error")]
    return {(item["setting"], item["change"]): item for item in found if item["part"]}


def test_a_right_trainer_has_equal_twins(folder: Path) -> None:
    found = measure(folder, "")
    assert not [item for item in found if item["part"]]
    asked = {(item["setting"], item["change"]) for item in found}
    assert {("", twins.HALVES), ("", twins.SHORT), ("", twins.CUT), ("loss_type=mean", "padding_free")} <= asked
    assert {("", twins.PADDED), ("", twins.PAD_IS_END)} <= asked
    assert {("alpha=0.25", "padding_free"), ("", twins.ODD), (f"margin={twins.COLUMN}", twins.HALVES)} <= asked


@pytest.mark.parametrize(("fault", "parts"), [("liger is right", ("", "")), ("liger is not divided", ("", "loss"))])
def test_liger_in_two_micro_batches(
    fault: str, parts: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "imitate_liger", lambda: None)
    found = {item["change"]: item for item in measure(folder, fault) if not item["setting"]}
    assert tuple(found[name]["part"] for name in ("use_liger_loss", f"use_liger_loss, {twins.HALVES}")) == parts


@pytest.mark.parametrize(
    ("fault", "setting", "change", "line"),
    [
        ("loses alpha", "alpha=0.25", "padding_free", "if self.config.alpha is not None"),
        ("not divided", "", twins.HALVES, "def compute_loss"),
        ("divides by all steps", "", twins.SHORT, "def compute_loss"),
        ("running baseline", "", twins.HALVES, "def compute_loss"),
        ("couples by margin", f"margin={twins.COLUMN}", twins.HALVES, "if self.config.margin"),
        ("pairs with itself", "", twins.ODD, "def compute_loss"),
        ("masks by token", "", twins.PAD_IS_END, "def compute_loss"),
        ("names shared weights", "", twins.SAVED, "def save_model"),
        ("pads only", "loss_type=mean", "padding_free", 'if self.config.loss_type == "mean"'),
    ],
)
def test_a_faulty_trainer_differs_at_its_place(folder: Path, fault: str, setting: str, change: str, line: str) -> None:
    found = find_changes(folder, fault)
    assert {(setting, change)} <= set(found)
    path, _, number = found[setting, change]["place"].rpartition(":")
    assert line in Path(path).read_text("utf-8").splitlines()[int(number) - 1]


def test_completions_of_a_policy_are_padded_too() -> None:
    mask, prompts = torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.tensor([[0, 1], [1, 1]])
    batch = {
        "prompt_ids": prompts + 7, "prompt_mask": prompts, "completion_ids": mask + 7, "completion_mask": mask,
        "ref_per_token_logps": mask * 0.5, "advantages": torch.ones(2), "num_items_in_batch": 5, "type_ids": [[0], [0]],
    }  # fmt: skip
    padded = twins.pad_batch(batch, 63)
    assert [name for name in batch if padded[name] is batch[name]] == ["advantages", "num_items_in_batch", "type_ids"]
    assert padded["completion_ids"][0].tolist() == [8, 8, 7, 63, 63, 63, 63]
    assert padded["prompt_ids"][0].tolist() == [63, 63, 63, 63, 7, 8], "on the left, where its collator pads"
    assert padded["ref_per_token_logps"].shape == padded["completion_mask"].shape == (2, 7)
    whole = {name: value for name, value in batch.items() if name.startswith("completion")} | {
        "completion_mask": mask**0
    }
    assert twins.pad_batch(whole, 63) == whole, "no row has padding"


@dataclass
class Arguments:
    """What our imitation of transformers' arguments takes."""

    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    max_steps: int = 1


class HeadTrainer(OurTrainer):
    """An imitation of transformers' Trainer, whose loss is that of the model's head."""

    fault = ""

    def __init__(self, model: Any, args: Arguments, collator: Any, rows: list[Any]):
        self.model, self.train_dataset, self.collator = model, rows, collator
        steps = args.gradient_accumulation_steps
        self.args = SimpleNamespace(
            max_steps=1, per_device=args.per_device_train_batch_size, gradient_accumulation_steps=steps
        )

    def collate(self, rows: Any) -> Any:
        return self.collator(rows)

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(**inputs).loss * (self.args.gradient_accumulation_steps if self.fault else 1)


@pytest.mark.parametrize(("fault", "ratio"), [("", 1.0), ("not divided", 2.0)])
def test_heads_of_transformers(fault: str, ratio: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadTrainer, "fault", fault)
    monkeypatch.setattr(transformers.trainer, "Trainer", HeadTrainer)
    monkeypatch.setattr(transformers.trainer, "TrainingArguments", Arguments)
    options = (str(folder), main._training_arguments, main._make_tokenizer, False)
    found = list(twin_makers.measure_framework("transformers", *options))
    assert not [item for item in found if item.get("error")]
    halves = {item["variant"]: item for item in found if item.get("change") == twins.HALVES}
    assert [*halves] == [*twin_makers.HEADS]
    assert all(abs(item["ratio"] - ratio) < 0.01 and bool(item["part"]) == bool(fault) for item in halves.values())


def test_padding_that_is_counted(folder: Path) -> None:
    make = functools.partial(make_trainer, folder, "counts padding")
    base = twins.attempt(make, twins.LENGTHS, 4, 1, {"loss_type": "mean"})
    padded = twins.attempt(make, twins.LENGTHS, 4, 1, {"loss_type": "mean"}, is_padded=True)
    assert twins.compare(base, padded)["part"] == "loss"


def test_a_step_without_a_gradient_is_not_neutral() -> None:
    empty = SimpleNamespace(gradients=[torch.zeros(3)], losses=[0.0], batches=[])
    assert twins.compare(empty, empty)["error"] and "part" not in twins.compare(empty, empty)


def test_a_row_that_fits_is_cut() -> None:
    long, short = list(range(30)), [40, 41, 42]
    whole = SimpleNamespace(batches=[[(long, long[3:]), (short, short[1:])]])
    right = SimpleNamespace(batches=[[(long[:16], long[3:16]), (short, short[1:])]])
    wrong = SimpleNamespace(batches=[[(long[:16], long[3:16]), (short[1:], short[1:])]])
    assert [twins.compare_truncation(whole, cut)["part"] for cut in (right, wrong)] == ["", "a row that fits"]


def test_a_short_last_step_is_no_second_problem_of_a_loss_that_nothing_divides() -> None:
    changes = [(twins.HALVES, 2.0), (twins.SHORT, 0.5)]
    measured = [TwinMeasurement("trl", "gkd", change=change, ratio=ratio, part="gradient") for change, ratio in changes]

    def count(*found: TwinMeasurement) -> int:
        return len(list(rule.check(replace(s.h200(), experiments=Known(Experiments(twins=found))))))

    assert [count(*measured), count(measured[1])] == [1, 1]


@pytest.mark.parametrize(("cause", "text"), [(True, "an import fails: No module"), (False, "it takes none of")])
def test_a_failed_import_is_told(cause: bool, text: str) -> None:
    def make(*arguments: Any) -> Any:
        error = RuntimeError("Failed to import trl.trainer.x")
        raise error from (ModuleNotFoundError("No module named 'z'") if cause else None)

    [twin] = twin_makers.measure_trainer("ours", "", [make, make], Config, False)
    assert twin["error"].startswith(text)


def test_a_trainer_that_was_not_measured_is_inconclusive() -> None:
    twin = TwinMeasurement("trl", "cpo", error="it takes none of the known kinds of rows")
    snapshot = replace(s.h200(), experiments=Known(Experiments(twins=(twin,))))
    with pytest.raises(MissingFact, match="trl cpo"):
        list(rule.check(snapshot))
    others = s.with_job(snapshot, {"accumulation": 4}, framework="trl", trainer="dpo")
    assert not list(rule.check(others))
    with pytest.raises(MissingFact):
        list(rule.check(s.with_job(snapshot, {"accumulation": 4}, framework="trl", trainer="cpo")))


@pytest.mark.parametrize(("own", "padded"), [([0, 0, 1, 1], [0] * 6 + [1, 1]), ([1, 1, 1, 0], [1] * 3 + [0] * 5)])
def test_padding_is_added_where_the_collator_pads(own: list[int], padded: list[int]) -> None:
    mask = torch.tensor([own, [1] * 4])
    prompts = {"prompt_input_ids": mask * 7, "prompt_attention_mask": mask}
    batch = twins.pad_batch({**prompts, "input_ids": mask, "attention_mask": torch.ones_like(mask)}, 63)
    assert batch["prompt_attention_mask"][0].tolist() == padded
    assert batch["prompt_attention_mask"].shape == batch["prompt_input_ids"].shape == (2, 8)
    assert batch["input_ids"].shape == (2, 4)  # no row shows the side


def test_twins_that_were_stopped_are_no_pass() -> None:
    late = Experiments(lost=("neutral changes of trl: not measured in 480 s: no answer in time",))
    snapshot = replace(s.h200(), experiments=Known(late))
    with pytest.raises(MissingFact, match="480 s"):
        list(rule.check(snapshot))
    assert not list(rule.check(s.with_job(snapshot, framework="ms-swift", trainer="dpo")))
