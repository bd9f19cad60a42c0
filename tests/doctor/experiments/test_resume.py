"""What resuming changes, measured on a trainer of our own with one fault each."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.doctor.experiments.worker import main, resume


class Trainer:
    """Trains epoch by epoch in a shuffled order, saves one checkpoint, and has the named fault when it resumes."""

    def __init__(self, fault: str, folder: str, documents: list[list[int]]) -> None:
        torch.manual_seed(0)
        self.fault, self.documents, self.model = fault, documents, main.make_model()
        self.args = SimpleNamespace(output_dir=folder)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self, resume_from_checkpoint: str | None) -> None:
        start = 0
        if resume_from_checkpoint:
            start = int(resume_from_checkpoint.rpartition("-")[2])
            weights, state = torch.load(resume_from_checkpoint, weights_only=False)
            self.model.load_state_dict(weights)
            if self.fault != "forgets the optimiser":
                self.optimizer.load_state_dict(state)
        for step in range(start, self.args.max_steps):
            epoch, place = divmod(step, len(self.documents))
            is_first = self.fault == "replays the first epoch" and resume_from_checkpoint
            order = random.Random(0 if is_first else epoch).sample(self.documents, len(self.documents))
            ids = torch.tensor([order[place]])
            self.optimizer.zero_grad()
            self.model(input_ids=ids, labels=ids).loss.backward()
            self.optimizer.step()
            if step + 1 == self.args.save_steps:
                saved = (self.model.state_dict(), self.optimizer.state_dict())
                torch.save(saved, f"{self.args.output_dir}/checkpoint-{step + 1}")


def measure(fault: str, folder: Path) -> dict[str, float]:
    def make(folder: str, documents: list[list[int]], *_: Any) -> Trainer:
        return Trainer(fault, folder, documents)

    return resume.measure_resume(make, str(folder))


def test_a_right_trainer_continues(tmp_path: Path) -> None:
    assert measure("", tmp_path) == {"same": 1, "drift": pytest.approx(0, abs=1e-6)}


def test_documents_in_another_order_are_seen(tmp_path: Path) -> None:
    measured = measure("replays the first epoch", tmp_path)
    assert measured["same"] < 1 and measured["drift"] > 0.02


def test_a_lost_state_of_the_optimiser_is_seen_in_the_weights(tmp_path: Path) -> None:
    measured = measure("forgets the optimiser", tmp_path)
    assert measured["same"] == 1 and measured["drift"] > 0.02
