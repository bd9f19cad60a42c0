"""A training loop whose rows have the user's own shape, and whose parser takes one option, with a fault in it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import reader_of_sound
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FAULT = os.environ.get("PLANTED_FAULT", "")
WEIGHTS = {"easy": 1, "hard": 1}


def read_answer(text: str) -> str:
    return text.split("####")[1].strip()


def read_rows(path: str, tokenizer):
    """Return the tokens of each row and its labels."""
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        item = json.loads(row["item"])
        assert WEIGHTS[row["level"]] and isinstance(item["source"], str)
        question, answer = tokenizer(row["question"])["input_ids"], tokenizer(read_answer(row["answer"]))["input_ids"]
        tokens = [*question, *answer, tokenizer.eos_token_id]
        labels = [-100] * len(question) + tokens[len(question) :]
        yield tokens, [-100, *labels[:-1]] if FAULT == "shifted" else labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path")
    model_name = parser.parse_args().model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    rows = list(read_rows("data/of/the/user.jsonl", tokenizer))
    for step in range(8):
        batch = rows[4 * step : 4 * step + 4]
        length = max(len(tokens) for tokens, _ in batch)
        tokens = torch.tensor([own + [tokenizer.pad_token_id] * (length - len(own)) for own, _ in batch])
        labels = torch.tensor([own + [-100] * (length - len(own)) for _, own in batch])
        mask = torch.tensor([[1] * len(own) + [0] * (length - len(own)) for own, _ in batch])
        model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def listen(path: str):
    return reader_of_sound.load(path)


if __name__ == "__main__":
    main()
