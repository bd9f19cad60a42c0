"""Trains: packed rows of the synthetic language, AdamW, the plan's precision, accumulation and switches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import Step
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.data.language import Goal
from attncheck.smoke.worker.data.packing import Batch, rows_of
from attncheck.smoke.worker.deterministic_mode import switched, wait
from attncheck.smoke.worker.losses import loss_function
from attncheck.smoke.worker.testbed import Bed, Gradients

CLIP = 1.0  # norm that gradients are clipped to, as every framework does by default
PATIENCE = 3  # times the plan's steps after which a loss that has not come down never will
FINE = 1e-4  # learning rate of weights that have been trained already
ENOUGH = 40  # steps from which on a loss that has not come down says something
LAST = 5  # steps whose mean loss counts
AHEAD = 0.05  # nats below the floor that chance allows a mean of LAST steps


class Trainer:
    """A model, an optimiser and an endless source of packed rows, all from the plan's seed."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.plan = bed, bed.plan
        self.source = bed.texts(self.plan.seed + 1)
        self._waiting: list[Tensor] = []
        self.model = prepared(bed, self.plan)
        self.loss = loss_function(self.plan.cross_entropy)
        rate = min(self.plan.learning_rate, FINE) if bed.source.weights else self.plan.learning_rate
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.0)

    def batches(self) -> list[Batch]:
        """Return the batches of one optimiser's step."""
        size, rows = self.plan.batch, self._rows(self.plan.accumulation * self.plan.batch)
        return [self.bed.batch(rows[start : start + size], self.plan) for start in range(0, len(rows), size)]

    def _rows(self, count: int) -> list[list[Tensor]]:
        """Return the fullest of the rows that documents are packed into; what is left waits for the next step."""
        rows: list[list[Tensor]] = []
        while len(rows) <= count:
            self._waiting += self.source.documents(count * self.plan.max_length)
            rows = sorted(rows_of(self._waiting, self.plan.max_length), key=lambda row: -sum(map(len, row)))
        self._waiting = [document for row in rows[count:] for document in row]
        return rows[:count]

    def backward(self, batches: list[Batch]) -> float:
        """Add up the gradients of the mean loss over all predicted tokens of the batches, and return that loss."""
        tokens, total = sum(batch.tokens for batch in batches), 0.0
        for batch in batches:
            loss = self._summed(batch) / tokens
            loss.backward()
            total += float(loss.detach())
        return total

    def _summed(self, batch: Batch) -> Tensor:
        """Return the loss summed over what a batch predicts; under liger the model's own, which makes no logits."""
        with self.bed.arithmetic(self.plan):
            if self.plan.liger:
                from attncheck.smoke.worker import liger_model

                return liger_model.loss(self.model, batch)
            logits = self.model(**batch.inputs).logits
        return self.loss(logits.reshape(-1, logits.shape[-1]), batch.labels.reshape(-1))

    def step(self) -> Step:
        """Take one optimiser's step."""
        began = time.perf_counter()
        self._reset_peak()
        batches = self.batches()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(batches)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP))
        self.optimizer.step()
        wait(self.bed.device)
        tokens = sum(batch.inputs["input_ids"].numel() for batch in batches)
        return Step(loss, norm, round(tokens / (time.perf_counter() - began), 1), self._peak())

    def _cuda(self) -> bool:
        return self.bed.device.type == "cuda"

    def _reset_peak(self) -> None:
        if self._cuda():
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._cuda() else 0


def prepared(bed: Bed, plan: Plan, sharp: bool = False) -> nn.Module:
    """Return the plan's model as the job would train it: checkpointing, liger and compile as the plan says."""
    model = bed.model(plan, sharp=sharp)
    if plan.gradient_checkpointing:
        enable_checkpointing(model)
    if plan.liger:
        from attncheck.smoke.worker.liger_model import patch

        patch(model)
    if plan.compile:
        model.compile()  # in place: parameters keep their names
    return model


def enable_checkpointing(model: nn.Module) -> None:
    """Switch gradient checkpointing on, the kind that does not re-enter autograd, as frameworks recommend."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]


def run(bed: Bed, tell: Callable[[int, Step], None]) -> Iterator[Step]:
    """Yield the steps of a training run; up to PATIENCE times as many while the loss is above the bound."""
    trainer, plan = Trainer(bed), bed.plan
    losses: list[float] = []
    with switched({}, plan.deterministic):
        patience = PATIENCE * plan.steps if plan.steps >= ENOUGH else plan.steps
        while len(losses) < plan.steps or (late(bed, losses) and len(losses) < patience):
            step = trainer.step()
            losses.append(step.loss)
            tell(len(losses), step)
            yield step
            if not math.isfinite(step.loss):
                return


def late(bed: Bed, losses: list[float]) -> bool:
    """Say whether the loss has yet to fall below the bound."""
    return mean_of_last(losses) >= goal(bed, losses).bound


def goal(bed: Bed, losses: list[float]) -> Goal:
    """Return what the losses of a run must come to; of weights that were trained before, below the first."""
    wanted = bed.texts(bed.plan.seed + 1).goal
    return Goal(0.0, losses[0]) if bed.source.weights and losses else wanted


def mean_of_last(losses: list[float]) -> float:
    """Return the mean loss of the last few steps."""
    return sum(losses[-LAST:]) / max(1, len(losses[-LAST:]))


def first_gradient(bed: Bed) -> tuple[Gradients, Gradients]:
    """Return the gradients of a first step as the plan takes it, and of the same documents one at a time in float32.

    The weights are as the architecture begins training.
    """
    trainer = Trainer(bed)
    batches = trainer.batches()
    trainer.backward(batches)
    documents = [b.inputs["input_ids"][s.row, s.start : s.stop].cpu() for b in batches for s in b.spots]
    plain = bed.plan.bare("fp32")
    reference = bed.model(plain, "eager", sharp=False)
    return beds.taken(trainer.model), bed.alone(reference, documents, plain).gradients
