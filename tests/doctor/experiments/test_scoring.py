"""What padding changes for scored rows, and what evaluating gives: trainers of our own, right and with one fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.experiments import REWARDS
from attncheck.doctor.experiments.worker import main, scoring, twins

IDS = torch.tensor([[63, 63, 5, 6, 7], [1, 2, 3, 4, 5]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
POSITIONS = (MASK.cumsum(-1) - 1).clamp(min=0)


class Scorer:
    """Scores two rows, of which one is padded on the left; `given` is what it gives the model."""

    def __init__(self, **given: Any) -> None:
        torch.manual_seed(0)
        self.model, self.given = scoring.make_learned_model(vocab_size=main.VOCABULARY).eval(), given

    def train(self) -> None:
        self.model(input_ids=IDS, attention_mask=MASK, **self.given)


class BlindScorer(Scorer):
    """Its model ignores the mask."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        backbone = self.model.transformer
        forward = backbone.forward

        def ignore_mask(*ids: Any, attention_mask: Any = None, **given: Any) -> Any:
            return forward(*ids, **given)

        backbone.forward = ignore_mask


@pytest.mark.parametrize(
    ("trainer", "is_same", "is_shifted"),
    [
        (Scorer(position_ids=POSITIONS), True, False),
        (Scorer(), False, True),
        (BlindScorer(position_ids=POSITIONS), False, False),
    ],
)
def test_padding_that_changes_a_row_is_seen(trainer: Scorer, is_same: bool, is_shifted: bool) -> None:
    measured = scoring.measure_scoring(lambda: trainer)
    assert (measured["change"] < 1e-4, measured["shifted"] < 1e-4) == (is_same, is_shifted)


class Evaluator:
    """A trainer that evaluates before its first step, with the named fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.train_dataset = fault, [1]
        self.args, self.state = SimpleNamespace(eval_on_start=False), SimpleNamespace(log_history=[])

    def evaluate(self) -> None:
        if self.fault == "cannot evaluate":
            raise AttributeError(self.fault)

    def train(self) -> None:
        if self.fault == "cannot train":
            raise TypeError(self.fault)
        if self.args.eval_on_start:
            if self.fault == "cannot start":
                raise AttributeError(self.fault)
            self.state.log_history.append({"eval_loss": 4.0 if self.fault == "counts twice" else 2.0})
        self.state.log_history.append({"loss": 2.0, "grad_norm": 1.0})


@pytest.mark.parametrize(
    ("fault", "measured"),
    [
        ("", {"ratio": 1.0}),
        ("counts twice", {"ratio": 2.0}),
        ("cannot evaluate", {"error": "AttributeError: cannot evaluate"}),
        ("cannot start", {"error": "AttributeError: cannot start", "at_start": True}),
        ("cannot train", {"unmeasured": "cannot train"}),
    ],
)
def test_evaluating_before_the_first_step(fault: str, measured: dict[str, Any]) -> None:
    assert main.measure_evaluation({}, lambda: Evaluator(fault)) == measured


@pytest.mark.parametrize(("weighs", "ratio"), [(False, (1.0 + 2.0) / 2 / (39 / 22)), (True, 1.0)])
def test_an_evaluation_loss_that_is_a_mean_over_batches_depends_on_their_size(weighs: bool, ratio: float) -> None:
    class Batches(Evaluator):
        """Its rows have losses of 1 and 2; in one batch, each token counts."""

        def evaluate(self, rows: Any) -> Any:  # type: ignore[override]
            assert [len(row) for row in rows] == [5, 17]
            is_whole = weighs or self.args.per_device_eval_batch_size > 1
            return {"eval_loss": (5 * 1.0 + 17 * 2.0) / 22 if is_whole else (1.0 + 2.0) / 2}

    def make(folder: str, documents: Any, *_: Any, model: Any) -> Any:
        trainer = Batches("")
        trainer.train_dataset = documents
        return trainer

    assert main.measure_evaluation_by_row(make, "") == {"by_row": pytest.approx(ratio)}


class Rewarded(Scorer):
    """A trainer whose loss is linear in the rewards less their mean, and scaled by a setting, with the named fault."""

    optimizer: Any
    reward_funcs: Any

    def __init__(self, fault: str, scale_rewards: str = "group", **_: object) -> None:
        super().__init__()
        is_exchanged, self.train_dataset = fault == "exchanged", [1]
        self.args = SimpleNamespace(scale_rewards=scale_rewards, max_steps=1)
        self.divides = (self.args.scale_rewards == "none") == is_exchanged

    def create_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        (reward,) = self.reward_funcs
        rewards = torch.tensor(reward(completions=["a", "b"]))
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4 if self.divides else 1)
        return (model(**inputs).logits.log_softmax(-1)[:, 0, 0] * advantages).mean()

    def train(self) -> None:
        self.compute_loss(self.model, {"input_ids": IDS}).backward()
        self.optimizer.step()


@pytest.mark.parametrize(("fault", "parts"), [("", ["", ""]), ("exchanged", ["gradient", "gradient"])])
def test_rewards_times_four(fault: str, parts: list[str]) -> None:
    found = list(scoring.measure_rewards(lambda **options: Rewarded(fault, **options)))
    assert [item["setting"] for item in found] == ["", "scale_rewards=none"]
    assert [item["part"] for item in found] == parts
    assert {item["change"] for item in found} == {f"scale_rewards, {REWARDS}"}


@pytest.mark.parametrize(("error", "answers"), [(None, [""]), (TypeError("it takes other arguments"), ["TypeError"])])
def test_rewards_that_cannot_be_measured_are_reported(
    error: Exception | None, answers: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure_rewards(make: object) -> Any:
        if error is not None:
            raise error
        yield {"change": REWARDS}

    monkeypatch.setattr(main, "_has", lambda module: True)
    monkeypatch.setattr(main, "_find_trl_class", lambda *_: Scorer)
    monkeypatch.setattr(main, "measure_rewards", measure_rewards)
    monkeypatch.setattr(main, "SAMPLING", {"grpo": ("",)})
    found = [item for field, item in main.measure_sampling(str(tmp_path)) if field == "twins"]
    assert [item.get("error", "").partition(":")[0] for item in found] == answers


def test_answers_of_a_policy_do_not_depend_on_the_division() -> None:
    def make(model: str, count: int, **settings: Any) -> Any:
        tokenizer = SimpleNamespace(eos_token_id=main.EOS, pad_token_id=main.PAD)
        return SimpleNamespace(count=count, model=SimpleNamespace(), processing_class=tokenizer, settings=settings)

    trainer = scoring.make_policy_trainer(make, twins.LENGTHS, 2, 2, {"loss_type": "dapo"})
    assert (trainer.count, trainer.settings) == (2, {"learning_rate": 0.0, "loss_type": "dapo"})
    answers = trainer.model.generate(input_ids=torch.zeros(scoring.ROWS, 3, dtype=torch.long), max_new_tokens=4)[:, 3:]
    assert [int((row == main.EOS).nonzero()[0]) + 1 for row in answers] == [*twins.ANSWERED]
    for lengths, settings in ((twins.LONG, {}), (twins.LENGTHS, {"images": twins.COLUMN})):
        with pytest.raises(ValueError, match="prompts"):
            scoring.make_policy_trainer(make, lengths, 4, 1, settings)
