"""The experiments themselves, on trainers of our own that have one fault each, and on one that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import main


class Loop:
    """A trainer that divides two documents into micro-batches, or over replicas, and has the named fault."""

    optimizer: Any

    def __init__(self, fault: str, documents: list[list[int]], per_device: int, steps: int) -> None:
        self.fault, self.steps, self.model = fault, steps, main.make_model()
        self.rows = self.train_dataset = [{"input_ids": document} for document in documents]
        self.args = SimpleNamespace(_n_gpu=1, train_batch_size=per_device)
        self.state = SimpleNamespace(log_history=[])

    def train(self) -> None:
        self.optimizer.zero_grad()
        tokens = sum(len(row["input_ids"]) for row in self.rows)
        if self.args._n_gpu > 1:
            self._train_replicas(tokens)
        else:
            for row in self.rows:
                ids = torch.tensor([row["input_ids"]])
                loss = self._sum_loss(self.model, ids) / tokens
                if self.fault == "mean of means" and self.steps > 1:
                    loss = loss * tokens / ids.shape[1] / len(self.rows)
                (loss / (self.steps if self.fault == "divides twice" else 1)).backward()
        self.state.log_history.append({"grad_norm": float(main.flatten_gradients(self.model.parameters()).norm())})
        self.optimizer.step()

    def _train_replicas(self, tokens: int) -> None:
        longest = max(len(row["input_ids"]) for row in self.rows)
        ids = torch.tensor([row["input_ids"] + [-100] * (longest - len(row["input_ids"])) for row in self.rows])
        replicas = torch.nn.DataParallel(Halves(self, tokens))
        loss = replicas(ids=ids).loss
        (loss.mean() * (1 if self.fault == "averages replicas" else len(self.rows))).backward()

    @staticmethod
    def _sum_loss(model: Any, ids: Any) -> Any:
        known = ids[:, ids[0] != -100]
        logits = model(input_ids=known).logits[0, :-1].float()
        return torch.nn.functional.cross_entropy(logits, known[0, 1:], reduction="sum")


class Output(dict[str, Any]):
    """What a model returns: keys and attributes."""

    __getattr__ = dict.__getitem__


class Halves(torch.nn.Module):
    """A module that divides its loss by all tokens."""

    def __init__(self, loop: Loop, tokens: int) -> None:
        super().__init__()
        self.loop, self.tokens = loop, tokens

    def forward(self, ids: Any) -> Any:
        return Output(loss=self.loop._sum_loss(self.loop.model, ids) / self.tokens, logits=ids)


def measure(fault: str, steps: int = 1, replicas: int = 1) -> dict[str, Any]:
    def make(folder: str, documents: list[list[int]], layout: str, attention: str, per_device: int, steps: int) -> Loop:
        return Loop(fault, documents, per_device, steps)

    return main.measure_step(make, "", steps, replicas)


@pytest.mark.parametrize(("steps", "replicas"), [(1, 1), (2, 1), (1, 2)])
def test_a_right_trainer_has_the_right_gradient(steps: int, replicas: int) -> None:
    measured = measure("", steps, replicas)
    assert measured["ratio"] == pytest.approx(1, abs=1e-4) and measured["cosine"] == pytest.approx(1, abs=1e-4)
    assert measured["logged"] == pytest.approx(1, abs=1e-4)


def test_a_loss_that_is_divided_twice_halves_the_gradient() -> None:
    measured = measure("divides twice", steps=2)
    assert measured["ratio"] == pytest.approx(0.5, abs=1e-4) and measured["cosine"] == pytest.approx(1, abs=1e-4)


def test_means_over_micro_batches_point_elsewhere() -> None:
    assert measure("mean of means", steps=2)["cosine"] < 0.98


def test_replicas_that_are_averaged_halve_the_gradient() -> None:
    assert measure("averages replicas", replicas=2)["ratio"] == pytest.approx(0.5, abs=1e-4)


def test_replicas_without_a_count_of_their_own_are_left_out_as_torch_leaves_them_out() -> None:
    class Sum(torch.nn.Module):
        def forward(self, ids: Any, count: Any) -> Any:
            return Output(loss=ids.float().sum() / count.sum(), logits=ids)

    replicas = main.make_replicas_class(2)(Sum())
    ids = torch.ones(2, 4)
    assert replicas(ids=ids, count=torch.ones(1)).loss == 4, "one chunk of the count: one replica runs"
    assert replicas(ids=ids, count=torch.ones(2)).loss.tolist() == [4, 4]


def test_what_separates_documents() -> None:
    restarting, running = torch.tensor([[0, 1, 0, 1, 0, 0]]), torch.tensor([[0, 1, 2, 3, 0, 0]])  # padded with zeros
    causal = torch.ones(1, 1, 4, 4).tril().bool()
    blocks = causal & ~torch.tensor([[False, False], [True, False]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert main.separates_documents({"position_ids": restarting})
    assert not main.separates_documents({"position_ids": running, "attention_mask": torch.ones(1, 6)})
    assert main.separates_documents({"cu_seq_lens_q": torch.tensor([0, 2, 4])})
    assert main.separates_documents({"attention_mask": torch.tensor([[1, 1, 2, 2, 0]])})
    assert main.separates_documents({"attention_mask": blocks})
    assert main.separates_documents({"attention_mask": torch.where(blocks, 0.0, -1e9)})
    assert not main.separates_documents({"attention_mask": causal})
    assert not main.separates_documents({"attention_mask": torch.where(causal, 0.0, -1e9)})
