"""A training loop as people write it, in pieces: a case overrides one of them, and does it wrong in its broken half."""

# mypy: ignore-errors
from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


class Loop:
    """Documents padded to a batch, or several in a row; the loss is the mean over the step's target tokens."""

    packed = False
    answers_only = False
    shares_rows = False  # every rank takes the same rows: tensor parallel
    attention = "sdpa"

    def __init__(self, options, broken: bool) -> None:
        self.options, self.broken = options, broken
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self.world > 1:
            dist.init_process_group("gloo")
        torch.manual_seed(0)
        self.tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)

    # Data.

    def read(self) -> list[tuple[list[int], list[int]]]:
        """Return each document's tokens and labels."""
        documents = []
        for line in Path(self.options.data_path).read_text().splitlines():
            row = json.loads(line)
            prompt, answer = (self.tokenize(row[name]) for name in ("prompt", "completion"))
            tokens = [*prompt, *answer, self.tokenizer.eos_token_id]
            documents.append((tokens, self.label(tokens, len(prompt))))
        return documents

    def tokenize(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def label(self, tokens: list[int], prompt: int) -> list[int]:
        """Return a document's labels; its first `prompt` tokens are the prompt."""
        return [IGNORED] * prompt + tokens[prompt:] if self.answers_only else list(tokens)

    def shard(self, documents):
        return documents if self.shares_rows else documents[self.rank :: self.world]

    def iterate(self, documents):
        """Yield each step's batches."""
        size, accumulation = self.options.per_device_train_batch_size, self.options.gradient_accumulation_steps
        for step in range(self.options.max_steps):
            first = step * size * accumulation % (len(documents) - size * accumulation)
            chosen = documents[first : first + size * accumulation]
            yield [self.collate(chosen[place : place + size]) for place in range(0, len(chosen), size)]

    def collate(self, documents):
        """Return a batch: a row for each document, or one row of all."""
        if self.packed:
            tokens = [token for own, _ in documents for token in own]
            labels = [label for _, own in documents for label in (IGNORED, *own[1:])]
            positions = [place for own, _ in documents for place in range(len(own))]
            return {
                "input_ids": torch.tensor([tokens]),
                "labels": torch.tensor([labels]),
                "position_ids": torch.tensor([positions]),
            }
        length = max(len(tokens) for tokens, _ in documents)
        fill = self.tokenizer.pad_token_id
        return {
            "input_ids": torch.tensor([tokens + [fill] * (length - len(tokens)) for tokens, _ in documents]),
            "labels": torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in documents]),
            "attention_mask": torch.tensor(
                [[1] * len(tokens) + [0] * (length - len(tokens)) for tokens, _ in documents]
            ),
        }

    # Model.

    def load(self):
        return AutoModelForCausalLM.from_pretrained(
            self.options.model_name_or_path, attn_implementation=self.attention, dtype=torch.float32
        ).train()

    def wrap(self, model):
        return torch.nn.parallel.DistributedDataParallel(model) if self.world > 1 else model

    def make_optimizer(self, model):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(parameters, lr=self.options.learning_rate, weight_decay=0.0)

    # Steps.

    def count(self, batches) -> int:
        """Return the number of target tokens of the step, over its batches and ranks."""
        total = torch.tensor(sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches))
        if self.world > 1 and not self.shares_rows:
            dist.all_reduce(total)
        return int(total)

    def compute_logits(self, batch):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return self.forward(**inputs, use_cache=False).logits.float()

    def compute_nll(self, batch):
        """Return the loss of each token but the first, 0 if it is no target."""
        logits = self.compute_logits(batch)[:, :-1]
        return functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"][:, 1:], ignore_index=IGNORED, reduction="none"
        )

    def compute_loss(self, batch, batches, total: int):
        scale = 1 if self.shares_rows else self.world  # DistributedDataParallel averages over ranks
        return self.compute_nll(batch).sum() / total * scale

    def reduce(self) -> None:
        """Bring gradients together if DistributedDataParallel does not."""

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def step(self, number: int, batches) -> None:
        total = self.count(batches)
        for batch in batches:
            self.compute_loss(batch, batches, total).backward()
        self.reduce()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self) -> None:
        documents = self.shard(self.read())
        self.model = self.load()
        self.forward = self.wrap(self.model)
        self.optimizer = self.make_optimizer(self.model)
        for number, batches in enumerate(self.iterate(documents)):
            self.step(number, batches)
        if dist.is_initialized():
            dist.destroy_process_group()
