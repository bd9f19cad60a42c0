"""A training loop whose options have names of its own.

PLANTED_FAULT "positions" and "cache" let documents run on, "shift" has each token predict the one after the next.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DEVICE = "cuda" if os.environ.get("ON_CUDA") else "cpu"
FAULT = os.environ.get("PLANTED_FAULT", "")


def pack(documents: list[list[int]], length: int) -> list[list[list[int]]]:
    """Return rows of whole documents."""
    rows: list[list[list[int]]] = [[]]
    for document in documents:
        if sum(map(len, rows[-1])) + len(document) > length:
            rows.append([])
        rows[-1].append(document)
    return [row for row in rows if row]


def make_batch(row: list[list[int]]) -> dict[str, torch.Tensor]:
    tokens = torch.tensor([[token for document in row for token in document]], device=DEVICE)
    positions = torch.cat([torch.arange(len(document), device=DEVICE) for document in row])[None]
    labels = tokens.clone()
    labels[positions == 0] = -100  # nothing before it predicts a document's first token
    if FAULT == "positions":
        positions = torch.arange(tokens.shape[1], device=DEVICE)[None]
    return {"input_ids": tokens, "position_ids": positions, "labels": labels}


def compute_loss(model, row: list[list[int]]) -> torch.Tensor:
    batch = make_batch(row)
    if FAULT == "cache":
        return model(**batch).loss
    if FAULT == "shift":
        labels = batch.pop("labels")
        logits = model(**batch, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits[0, :-2], labels[0, 2:])
    return model(**batch, use_cache=False).loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--accum", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).to(DEVICE)
    texts = [row["text"] for row in json.loads(Path(options.data).read_text())]
    documents = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model.train()
    for step, row in enumerate(pack(documents, options.seq_len)):
        (compute_loss(model, row) / options.accum).backward()
        if (step + 1) % options.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
            model.save_pretrained(options.out)


main()
