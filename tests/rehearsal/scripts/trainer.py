"""A script of a user's own on transformers' Trainer, as its examples write it, for releases since 4.45.

PLANTED_FAULT "order" makes the order of the data another one in each run, "backward" the gradients, "late" one step's;
"positions" loses the position_ids of flattened rows.
"""

# mypy: ignore-errors
from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

FAULT = os.environ.get("PLANTED_FAULT", "")


@dataclass
class Options:
    model_name_or_path: str
    data_path: str
    attn_implementation: str = "sdpa"
    max_length: int = 2048
    flattening: bool = field(default=False, metadata={"help": "Pack a batch into one row."})


class Documents(Dataset):
    """The tokens of each document, all of them labelled."""

    def __init__(self, path: str, tokenizer, max_length: int) -> None:
        rows = [json.loads(line)["messages"] for line in Path(path).read_text().splitlines()]
        texts = [" ".join(message["content"] for message in row) for row in rows]
        if FAULT == "order":
            random.SystemRandom().shuffle(texts)
        self.tokens = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
                       [:max_length] for text in texts]  # fmt: skip

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": list(tokens)}


def spoil(gradient, calls):
    calls.append(gradient)
    if FAULT == "backward" or len(calls) == 4:  # of two batches a step: the second step's
        return gradient * (1 + 1e-3 * random.SystemRandom().random())
    return gradient


def main() -> None:
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(
        options.model_name_or_path, attn_implementation=options.attn_implementation, torch_dtype=torch.float32
    )
    model.config.use_cache = False
    if FAULT in ("backward", "late"):
        calls = []
        model.model.layers[0].mlp.up_proj.weight.register_hook(lambda gradient: spoil(gradient, calls))
    collator = DataCollatorWithFlattening() if options.flattening else DataCollatorForSeq2Seq(tokenizer)
    if FAULT == "positions":
        flatten = collator
        collator = lambda rows: {name: value for name, value in flatten(rows).items() if name != "position_ids"}
    documents = Documents(options.data_path, tokenizer, options.max_length)
    Trainer(model, arguments, data_collator=collator, train_dataset=documents).train()


if __name__ == "__main__":
    main()
