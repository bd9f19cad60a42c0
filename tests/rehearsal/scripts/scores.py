"""A script's own reward model, a head on a model without one; SCORED names where it reads the score."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer


class RewardModel(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = AutoModel.from_pretrained(name, dtype=torch.float32)
        self.head = nn.Linear(self.body.config.hidden_size, 1)

    def forward(self, tokens, mask):
        return self.head(self.body(input_ids=tokens, attention_mask=mask).last_hidden_state)[..., 0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--data_path")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--max_length", type=int, default=2048)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = RewardModel(options.model_name_or_path)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    rows = [json.loads(line) for line in Path(options.data_path).read_text().splitlines()]
    model.train()
    for step in range(options.max_steps):
        taken = [row["prompt"] + row["completion"] for row in rows[4 * step : 4 * step + 4]]
        batch = tokenizer(taken, return_tensors="pt", padding=True, padding_side="right")
        scores, mask = model(batch["input_ids"], batch["attention_mask"]), batch["attention_mask"]
        ends = mask.sum(1) - 1 if os.environ["SCORED"] == "end" else torch.full((4,), mask.shape[1] - 1)
        chosen, rejected = scores[torch.arange(4), ends].chunk(2)
        (-functional.logsigmoid(chosen - rejected).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


main()
