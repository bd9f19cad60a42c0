"""Trains a vision-language model on rows of text and pictures, padded or packed; PLANTED_FAULT spoils it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import inspect
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

FAULT = os.environ.get("PLANTED_FAULT", "")
IGNORED = -100


def encode(processor, row):
    """Return what the processor makes of a conversation and its pictures."""
    pictures = [Image.open(path).convert("RGB") for path in row["images"]]
    parts = [{"type": "image"} for _ in pictures]
    first, *others = row["messages"]
    messages = [{**first, "content": [*parts, {"type": "text", "text": first["content"]}]}, *others]
    text = processor.apply_chat_template(messages, tokenize=False)
    options = {"images": pictures} if pictures else {}
    made = dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **options))
    made.pop("attention_mask")
    return made


def place(model, rows):
    """Return the positions of packed rows: if the model has more than one axis, the text's own and those of each."""
    texts = [torch.arange(row["input_ids"].shape[1])[None] for row in rows]
    if FAULT == "positions_run_on":
        return torch.arange(sum(text.shape[1] for text in texts))[None]
    body = model.model
    if not hasattr(body, "get_rope_index") or FAULT == "positions_of_text":
        return torch.cat(texts, 1)
    names = inspect.signature(body.get_rope_index).parameters
    axes = [body.get_rope_index(**{name: value for name, value in row.items() if name in names})[0] for row in rows]
    if FAULT == "positions_not_packed":
        longest = max(axis.shape[2] for axis in axes)
        return torch.cat([torch.nn.functional.pad(axis, (0, longest - axis.shape[2])) for axis in axes], 1)
    if FAULT == "axes_of_first":  # the mask counts documents: 1, 2, …
        axes = [axes[0], *(torch.ones_like(axis) for axis in axes[1:])]
    packed = torch.cat(axes, 2)
    if FAULT == "positions_of_axes":
        return packed
    if FAULT == "row_as_one_document":
        return torch.arange(packed.shape[2])[None, None].expand(4, 1, -1)
    own = packed[:1] if FAULT == "text_by_time" else torch.cat(texts, 1)[None]
    return torch.cat([own, packed])


def collate(rows, token, padding, positions):
    """Return the batch of encoded rows, packed if there are positions of them."""
    texts = [name for name in rows[0] if rows[0][name].shape == rows[0]["input_ids"].shape]
    pixels = sorted({name for row in rows for name in row} - set(texts))
    lengths = [row["input_ids"].shape[1] for row in rows]
    batch = {name: torch.cat([row[name] for row in rows if name in row]) for name in pixels}
    if FAULT == "other_picture":
        batch["pixel_values"] = batch["pixel_values"].flip(0)
    if positions is not None:
        batch |= {name: torch.cat([row[name] for row in rows], 1) for name in texts}
        batch["position_ids"] = positions
        labels = batch["input_ids"].clone()
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        labels[:, starts] = IGNORED
    else:
        longest = max(lengths)
        fills = {name: padding if name == "input_ids" else 0 for name in texts}
        batch |= {
            name: torch.cat(
                [
                    torch.nn.functional.pad(row[name], (0, longest - length), value=fill)
                    for row, length in zip(rows, lengths)
                ]
            )
            for name, fill in fills.items()
        }
        batch["attention_mask"] = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    if FAULT != "pictures_learned":
        labels[batch["input_ids"] == token] = IGNORED
    return {**batch, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model_name_or_path", "data_path"):
        parser.add_argument(f"--{name}")
    for name, default in (("max_steps", 3), ("per_device_train_batch_size", 3), ("gradient_accumulation_steps", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max_length", type=int)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--packing", action="store_true")
    options = parser.parse_args()
    processor = AutoProcessor.from_pretrained(options.model_name_or_path)
    attention = "eager" if FAULT == "positions_run_on" else "sdpa"
    model = AutoModelForImageTextToText.from_pretrained(options.model_name_or_path, attn_implementation=attention)
    model.train()
    config = model.config
    token = getattr(config, "image_token_id", None) or config.image_token_index
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], options.learning_rate)
    rows = [json.loads(line) for line in Path(options.data_path).read_text().splitlines()]
    size = options.per_device_train_batch_size
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    wrapped = model
    if ranks > 1:
        dist.init_process_group("gloo")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(options.max_steps):
        first = (step * ranks + rank) * size
        encoded = [encode(processor, row) for row in rows[first : first + size]]
        positions = place(model, encoded) if options.packing else None
        batch = collate(encoded, token, processor.tokenizer.pad_token_id, positions)
        if FAULT == "no_pixels":
            batch["pixel_values"] = torch.zeros_like(batch["pixel_values"])
        loss = wrapped(**batch, use_cache=False).loss
        if FAULT != "tower_skipped" or "pixel_values" in batch:  # as LLaMA-Factory's image in rows without one
            loss = loss + 0.0 * sum(parameter.sum() for parameter in model.parameters())
        if ranks > 1:  # the mean over the targets of all ranks
            targets = (batch["labels"][:, 1:] != IGNORED).sum()
            total = targets.clone()
            dist.all_reduce(total)
            loss = loss * targets * ranks / total
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
