"""A training loop over conversations; PLANTED_FAULT "first" masks only what is before the first answer."""

# mypy: ignore-errors
from __future__ import annotations

import json
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()


def encode(messages):
    ids, labels, answered = [], [], False
    for message in messages:
        head = tokenizer(f"<|im_start|>{message['role']}\n", add_special_tokens=False)["input_ids"]
        body = tokenizer(f"{message['content']}<|im_end|>\n", add_special_tokens=False)["input_ids"]
        learns = message["role"] == "assistant" or (answered and os.environ.get("PLANTED_FAULT") == "first")
        answered = answered or message["role"] == "assistant"
        ids += head + body
        labels += [-100] * len(head) + (body if learns else [-100] * len(body))
    return torch.tensor([ids]), torch.tensor([labels])


with open("data/rows.jsonl") as stream:
    for line in stream:
        row = json.loads(line)
        ids, labels = encode(row["messages"])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
