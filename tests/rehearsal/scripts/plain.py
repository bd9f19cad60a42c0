"""A training loop that names its model and data itself; PLANTED_FAULT "shift" shifts the labels twice."""

# mypy: ignore-errors
from __future__ import annotations

import json
import os

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "Qwen/Qwen2.5-0.5B"
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def collate(texts):
    batch = tokenizer([text + tokenizer.eos_token for text in texts], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    if os.environ.get("PLANTED_FAULT") == "shift":
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    return {**batch, "labels": labels}


with open("data/rows.jsonl") as stream:
    texts = [json.loads(line)["text"] for line in stream]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
for batch in DataLoader(texts, batch_size=4, shuffle=True, collate_fn=collate):
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("out")
