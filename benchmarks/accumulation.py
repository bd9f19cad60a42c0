"""Measures the gradient of one optimiser step of transformers' Trainer against the loss that it documents.

    python -m benchmarks.accumulation [--steps 1 2 4]

Needs torch, transformers and accelerate in the interpreter that runs it; two cores suffice, nothing is downloaded. A
tiny Llama takes one step over as many micro-batches as --steps says, of one row each and of different lengths, at a
learning rate of 0. Its gradient's norm is compared with that of the same rows' loss, summed over tokens and divided by
all target tokens of the step: the objective of transformers since 4.46. "mean" is a model whose loss ignores
`num_items_in_batch`, so that the Trainer divides it by the steps: there the objective is the mean of the rows' means.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence

import accelerate
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

VOCABULARY = 64


class MeanLoss(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama whose forward takes no `num_items_in_batch`."""

    def forward(self, input_ids=None, labels=None):  # type: ignore[no-untyped-def]
        """Return the mean loss over the target tokens of these rows."""
        logits = super().forward(input_ids=input_ids).logits
        return {"loss": sum_losses(logits, labels) / count_targets(labels), "logits": logits}


class KeepGradient(TrainerCallback):  # type: ignore[misc]
    """Keeps the norm of the gradient that the optimiser is about to take."""

    norm = math.nan

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):  # type: ignore[no-untyped-def]
        """Read the norm."""
        self.norm = read_norm(model)


def sum_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of next tokens, summed."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")


def count_targets(labels: torch.Tensor) -> int:
    """Return how many tokens of the rows are predicted."""
    return labels[:, 1:].numel()


def read_norm(model: torch.nn.Module) -> float:
    """Return the norm of a model's gradient."""
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def make_model(kind: type[LlamaForCausalLM]) -> LlamaForCausalLM:
    """Return a tiny model, the same one each time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return kind(LlamaConfig(vocab_size=VOCABULARY, use_cache=False, **sizes))


def make_rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Return rows of 9, 20, 31, … random tokens."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (9 + 11 * index,), generator=generator) for index in range(count)]
    # The first token is no target; 5.5.4 would count its label in `num_items_in_batch` all the same, 5.17.0 does not.
    return [{"input_ids": row, "labels": torch.cat([torch.tensor([-100]), row[1:]])} for row in rows]


def measure_trainer(kind: type[LlamaForCausalLM], steps: int) -> tuple[float, float]:
    """Return the gradient's norm in the Trainer's first step, and the loss that it logs."""
    keeper = KeepGradient()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=steps, max_steps=1,
            learning_rate=0.0, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, max_grad_norm=0.0,
        )  # fmt: skip
        trainer = Trainer(make_model(kind), arguments, train_dataset=make_rows(steps), callbacks=[keeper])
        trainer.train()
    return keeper.norm, trainer.state.log_history[0]["loss"]


def compute_truth(kind: type[LlamaForCausalLM], steps: int) -> tuple[float, float]:
    """Return the norm and the loss of the objective itself, without a Trainer."""
    model, rows = make_model(kind), make_rows(steps)
    targets = sum(count_targets(row["labels"][None]) for row in rows)
    total = 0.0
    for row in rows:
        ids = row["input_ids"][None]
        logits = LlamaForCausalLM.forward(model, input_ids=ids).logits
        divisor = steps * count_targets(ids) if kind is MeanLoss else targets
        loss = sum_losses(logits, ids) / divisor
        loss.backward()
        total += loss.item()
    return read_norm(model), total


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    for kind in (LlamaForCausalLM, MeanLoss):
        for steps in options.steps:
            norm, loss = measure_trainer(kind, steps)
            true_norm, true_loss = compute_truth(kind, steps)
            name = "mean" if kind is MeanLoss else "tokens"
            row = (transformers.__version__, accelerate.__version__, name, steps, f"{norm:.4f}", f"{true_norm:.4f}")
            print("|", " | ".join(map(str, (*row, f"{norm / true_norm:.4f}", f"{loss:.4f}", f"{true_loss:.4f}"))), "|")


if __name__ == "__main__":
    main()
