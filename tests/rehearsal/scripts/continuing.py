"""A small Trainer whose checkpoints, or whose second epoch, have the fault that PLANTED_FAULT names.

Without accelerate, which transformers' Trainer requires, a stand-in with its methods' names trains.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from enum import Enum
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, RandomSampler
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

FAULT = os.environ.get("PLANTED_FAULT", "")


class SmallTrainer:
    """What transformers' Trainer does with its methods: steps, a checkpoint, and resuming from it."""

    def __init__(self, model, args, train_dataset) -> None:
        self.model, self.args, self.train_dataset = model, args, train_dataset
        self.optimizer = None
        self.state, self.control, self.callback_handler = SimpleNamespace(), None, SimpleNamespace(callbacks=[])
        torch.manual_seed(42)

    def get_train_dataloader(self, epoch=0):
        rows = [{name: torch.tensor(value) for name, value in row.items()} for row in self.train_dataset]
        sampler = self._get_train_sampler()
        sampler.generator = torch.Generator().manual_seed(epoch)
        return DataLoader(rows, batch_size=2, sampler=sampler)

    def iterate(self, first):
        """Yield the batches of all epochs, by number; a resumed run may have lost the number of its first epoch."""
        for epoch in range(9):
            is_lost = FAULT == "epoch_forgotten" and first > 0
            yield from self.get_train_dataloader(0 if is_lost else epoch)

    def _save_checkpoint(self, model, trial) -> None:
        folder = f"{self.args.output_dir}/checkpoint-{self.step}"
        os.makedirs(folder)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, f"{folder}/state.pt")

    def _load_from_checkpoint(self, folder) -> None:
        self.model.load_state_dict(torch.load(f"{folder}/state.pt")["model"])

    def _load_optimizer_and_scheduler(self, folder) -> None:
        self.optimizer.load_state_dict(torch.load(f"{folder}/state.pt")["optimizer"])

    def training_step(self, model, inputs):
        loss = model(**inputs).loss / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()

    def create_optimizer(self) -> None:
        self.optimizer = torch.optim.AdamW([own for own in self.model.parameters() if own.requires_grad], lr=1e-3)

    def train(self, resume_from_checkpoint=None) -> None:
        self.create_optimizer()
        self.step = 0
        self.model.train()
        if resume_from_checkpoint:
            self._load_from_checkpoint(resume_from_checkpoint)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
            self.step = torch.load(f"{resume_from_checkpoint}/state.pt")["step"]
        count, start = self.args.gradient_accumulation_steps, self.step
        for number, batch in enumerate(self.iterate(start), 1):
            if number <= start * count or self.step == self.args.max_steps:
                continue
            self.training_step(self.model, batch)
            if number % count == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.step += 1
                if self.args.save_strategy == "steps" and self.step % self.args.save_steps == 0:
                    self._save_checkpoint(self.model, None)


class Strategy(str, Enum):
    NO = "no"
    STEPS = "steps"


if importlib.util.find_spec("accelerate"):
    from transformers import Trainer, TrainingArguments
else:
    Trainer = SmallTrainer
    from attncheck.rehearsal.watcher import continuing, recorder

    own = recorder.Recorder(os.environ["CONTINUED_IN"])
    continuing.watch_interruptions(own, SimpleNamespace(Trainer=SmallTrainer))

    def TrainingArguments(folder, **settings):  # noqa: N802
        no = {"save_strategy": Strategy.NO, "eval_strategy": Strategy.NO}
        return SimpleNamespace(**{**settings, "output_dir": folder, **no})


class OneOrder(RandomSampler):
    def __iter__(self):
        return iter(torch.randperm(len(self.data_source), generator=torch.Generator().manual_seed(0)).tolist())


class NewOrder(RandomSampler):
    def __iter__(self):
        return iter(random.SystemRandom().sample(range(len(self.data_source)), len(self.data_source)))


class Curriculum(TrainerCallback):
    """Gives the trainer other rows from the second epoch on: the same ones, if it is right."""

    def on_epoch_begin(self, args, state, control, **others) -> None:
        if FAULT == "other_rows" and state.epoch >= 1:
            self.trainer.train_dataset = self.trainer.train_dataset[:4]


class Thawing(TrainerCallback):
    """Trains the embedding from the third epoch on."""

    def on_epoch_begin(self, args, state, control, model, optimizer, **others) -> None:
        weight = model.get_input_embeddings().weight
        if FAULT in ("thawed", "held") and state.epoch == 2:
            weight.requires_grad = True
            if FAULT == "held":
                optimizer.add_param_group({"params": [weight]})


class OwnTrainer(Trainer):
    def _save_checkpoint(self, *arguments, **options):
        if FAULT == "saving":
            raise AttributeError("'ValueHead' object has no attribute 'pretrained_model'")
        super()._save_checkpoint(*arguments, **options)

    def _load_from_checkpoint(self, folder, *arguments, **options):
        if FAULT == "loading":
            raise RuntimeError("Error(s) in loading state_dict")
        if FAULT != "not_loaded":
            super()._load_from_checkpoint(folder, *arguments, **options)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if FAULT != "new_optimizer":
            super()._load_optimizer_and_scheduler(checkpoint)

    def _get_train_sampler(self, *arguments):
        samplers = {"one_order": OneOrder, "new_order": NewOrder}
        return samplers.get(FAULT, RandomSampler)(self.train_dataset)


def main() -> None:
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=64, use_cache=False
    )
    rows = [{"input_ids": [(n + 5 * p) % 64 for p in range(8)], "labels": list(range(8))} for n in range(24)]
    if FAULT == "equal_rows":
        rows = rows[:1] * 24
    if FAULT == "dropout":
        config.update({"attention_dropout": 0.5})
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-3, use_cpu=True, report_to="none", save_strategy="no", logging_steps=1,
    )  # fmt: skip
    if FAULT == "seed_first":
        torch.manual_seed(7)
    model = LlamaForCausalLM._from_config(config)
    torch.manual_seed(7)
    if FAULT == "weights_after_the_seed":
        model.init_weights()
        for value in model.parameters():
            torch.nn.init.normal_(value)
    trainer, curriculum = OwnTrainer(model, arguments, train_dataset=rows), Curriculum()
    curriculum.trainer = trainer
    model.get_input_embeddings().requires_grad_(FAULT not in ("thawed", "held"))
    trainer.callback_handler.callbacks += [curriculum, Thawing()]
    trainer.train()


if __name__ == "__main__":
    main()
