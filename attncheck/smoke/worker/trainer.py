"""Trains a model on packed rows with AdamW, with the plan's precision, accumulation and features."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import Step
from attncheck.smoke.worker import liger_model
from attncheck.smoke.worker.data.language import LossBounds
from attncheck.smoke.worker.data.packing import Batch, pack_rows
from attncheck.smoke.worker.deterministic_mode import determinism_settings, synchronize
from attncheck.smoke.worker.losses import load_loss_function
from attncheck.smoke.worker.probe import Forward, measure_loss_fault, watch_forwards
from attncheck.smoke.worker.testbed import Gradients, Testbed, collect_gradients

MAX_GRAD_NORM = 1.0  # the norm at which gradients are clipped, every framework's default
MAX_STEPS_FACTOR = 3  # times the plan's steps: a loss that is still above the bound then stays there
MAX_FINE_TUNING_RATE = 1e-4  # learning rate for pretrained weights
MIN_CONCLUSIVE_STEPS = 40  # after this many steps a loss above the bound is an error
AVERAGED_STEPS = 5  # the judged loss is the mean over these last steps
FLOOR_MARGIN = 0.05  # nats below the floor that chance allows for a mean over AVERAGED_STEPS steps


class Trainer:
    """A model, an optimiser and an endless source of packed rows, all seeded by the plan."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed, self.plan = testbed, testbed.plan
        self.source = testbed.training_source(self.plan.seed + 1)
        self._leftover_documents: list[Tensor] = []
        self.model = prepare_model(testbed, self.plan)
        self.loss_function = load_loss_function(self.plan.cross_entropy)
        learning_rate = (
            min(self.plan.learning_rate, MAX_FINE_TUNING_RATE) if testbed.source.weights else self.plan.learning_rate
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)

    def next_batches(self) -> list[Batch]:
        """Return the batches of the next optimiser step."""
        size, rows = self.plan.batch, self._next_rows(self.plan.accumulation * self.plan.batch)
        return [self.testbed.make_batch(rows[start : start + size], self.plan) for start in range(0, len(rows), size)]

    def _next_rows(self, count: int) -> list[list[Tensor]]:
        """Return the fullest packed rows; the other documents are kept for the next step."""
        rows: list[list[Tensor]] = []
        while len(rows) <= count:
            self._leftover_documents += self.source.take_documents(count * self.plan.max_length)
            rows = sorted(
                pack_rows(self._leftover_documents, self.plan.max_length), key=lambda row: -sum(map(len, row))
            )
        self._leftover_documents = [document for row in rows[count:] for document in row]
        return rows[:count]

    def backward(self, batches: list[Batch]) -> float:
        """Accumulate the gradients of the mean loss over all predicted tokens of the batches; return that loss."""
        predicted_tokens, total = sum(batch.predicted_tokens for batch in batches), 0.0
        for batch in batches:
            loss = self._summed_loss(batch) / predicted_tokens
            loss.backward()
            total += float(loss.detach())
        return total

    def _summed_loss(self, batch: Batch) -> Tensor:
        """Return the loss summed over a batch's predicted tokens; with liger, the model's own loss, without logits."""
        with self.testbed.autocast_context(self.plan):
            if self.plan.liger:
                return liger_model.summed_loss(self.model, batch)
            logits = self.model(**batch.inputs).logits
        return self.loss_function(logits.reshape(-1, logits.shape[-1]), batch.labels.reshape(-1))

    def step(self) -> Step:
        """Take one optimiser step."""
        started = time.perf_counter()
        self._reset_peak_memory()
        batches = self.next_batches()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(batches)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM))
        self.optimizer.step()
        synchronize(self.testbed.device)
        input_tokens = sum(batch.inputs["input_ids"].numel() for batch in batches)
        return Step(loss, grad_norm, round(input_tokens / (time.perf_counter() - started), 1), self._peak_memory())

    def _is_on_cuda(self) -> bool:
        return self.testbed.device.type == "cuda"

    def _reset_peak_memory(self) -> None:
        if self._is_on_cuda():
            torch.cuda.reset_peak_memory_stats()

    def _peak_memory(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._is_on_cuda() else 0


def prepare_model(testbed: Testbed, plan: Plan) -> nn.Module:
    """Return the plan's model as the job would train it: with checkpointing, liger and compile as in the plan."""
    model = testbed.build_model(plan, sharp_weights=False).train()
    if plan.gradient_checkpointing:
        enable_checkpointing(model)
    if plan.liger:
        liger_model.patch_model(model)
    if plan.compile:
        model.compile()  # in place: parameters keep their names
    return model


def enable_checkpointing(model: nn.Module) -> None:
    """Enable non-reentrant gradient checkpointing, as frameworks recommend."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]


def train(testbed: Testbed, on_step: Callable[[int, Step], None]) -> Iterator[Step]:
    """Yield the steps of a training run; up to MAX_STEPS_FACTOR times as many while the loss is above the bound."""
    trainer, plan = Trainer(testbed), testbed.plan
    losses: list[float] = []
    with determinism_settings({}, plan.deterministic):
        max_steps = MAX_STEPS_FACTOR * plan.steps if plan.steps >= MIN_CONCLUSIVE_STEPS else plan.steps
        while len(losses) < plan.steps or (is_above_bound(testbed, losses) and len(losses) < max_steps):
            step = trainer.step()
            losses.append(step.loss)
            on_step(len(losses), step)
            yield step
            if not math.isfinite(step.loss):
                return


def is_above_bound(testbed: Testbed, losses: list[float]) -> bool:
    """Return whether the loss has not yet fallen below the bound."""
    return mean_last_loss(losses) >= loss_bounds(testbed, losses).bound


def loss_bounds(testbed: Testbed, losses: list[float]) -> LossBounds:
    """Return the bounds on the losses of a run; for pretrained weights, the first loss is the bound."""
    bounds = testbed.training_source(testbed.plan.seed + 1).loss_bounds
    return LossBounds(0.0, losses[0]) if testbed.source.weights and losses else bounds


def mean_last_loss(losses: list[float]) -> float:
    """Return the mean loss of the last AVERAGED_STEPS steps."""
    return sum(losses[-AVERAGED_STEPS:]) / max(1, len(losses[-AVERAGED_STEPS:]))


@dataclass(frozen=True)
class FirstStep:
    """A first step's gradients and documents, and the error of the loss's gradient at the logits.

    The weights are the architecture's initial ones.
    """

    gradients: Gradients
    documents: tuple[Tensor, ...]
    loss_fault: float  # `probe.measure_loss_fault`; 0.0 for a compiled model, and for liger, which makes no logits


def take_first_step(testbed: Testbed) -> FirstStep:
    """Run a first step under the testbed's plan, without the optimiser."""
    trainer = Trainer(testbed)
    testbed.quieten(trainer.model)
    batches = trainer.next_batches()
    with ExitStack() as stack:
        forwards: list[Forward] = []
        if not testbed.plan.compile:  # a compiler would trace the recording
            forwards = stack.enter_context(watch_forwards(trainer.model, with_choices=False))
        trainer.backward(batches)
    spots = [(number, span) for number, batch in enumerate(batches) for span in batch.spans]
    documents = tuple(batches[n].inputs["input_ids"][s.row, s.start : s.stop].cpu() for n, s in spots)
    return FirstStep(collect_gradients(trainer.model), documents, measure_loss_fault(forwards, spots, documents))
