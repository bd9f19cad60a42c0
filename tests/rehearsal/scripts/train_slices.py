"""A training loop whose packed rows are spread over all ranks, with one fault in it if PLANTED_FAULT names one.

Each rank has a slice of every row, contiguous or zigzag; attention gathers the keys and values of all ranks, with
positions in the row and the row's documents. The loss is each rank's share of the mean over the step's target tokens.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

FAULT = os.environ.get("PLANTED_FAULT", "")
IGNORED = -100
VISIBLE = {}  # which tokens of the row each token of this rank's slice sees: "mask", (1, 1, slice, row)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--max_length", type=int, default=2048)
    parser.add_argument("--order", choices=("contiguous", "zigzag", "striped"), default="contiguous")
    parser.add_argument("--ring_size", type=int, default=0)  # 0: all ranks
    parser.add_argument("--loss", choices=("share", "whole"), default="share")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


class Gather(torch.autograd.Function):
    """Slices (batch, heads, tokens, d) of all ranks of a group, one after another along the tokens."""

    @staticmethod
    def forward(ctx, part, group):
        ctx.group, ctx.length = group, part.shape[2]
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.split(ctx.length, 2)[ctx.group.rank()].contiguous(), None


def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    """Return attention of this rank's queries over the keys of all ranks, or of its own alone."""
    if FAULT != "slices_alone":
        key, value = Gather.apply(key, VISIBLE["group"]), Gather.apply(value, VISIBLE["group"])
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = VISIBLE["mask"]
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def read_rows(path: str, tokenizer, max_length: int):
    """Return packed rows: the documents of each."""
    rows = [[]]
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        text = f"{row['prompt']} {row['completion']}"
        tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        if sum(map(len, rows[-1])) + len(tokens) > max_length:
            rows.append([])
        rows[-1].append(tokens)
    return rows


def collate(documents, length: int, padding: int):
    """Return a row's tokens, the label of the token that follows each, positions, and the document of each token."""
    tokens = [token for document in documents for token in document]
    labels = [token for document in documents for token in (*document[1:], IGNORED)]
    positions = [place for document in documents for place in range(len(document))]
    numbers = [number for number, document in enumerate(documents) for _ in document]
    missing = length - len(tokens)
    tokens, labels = tokens + [padding] * missing, labels + [IGNORED] * missing
    positions, numbers = positions + list(range(missing)), numbers + [-1] * missing
    return [torch.tensor(column) for column in (tokens, labels, positions, numbers)]


def order_places(order: str, size: int, length: int) -> torch.Tensor:
    """Return where in the row each token of each rank's slice is: (ranks, length)."""
    places = torch.arange(size * length)
    if order == "striped":
        return places.view(length, size).T
    if order == "zigzag":
        chunks = places.view(2 * size, -1)
        return torch.cat([chunks[:size], chunks[size:].flip(0)], 1)
    return places.view(size, length)


def make_mask(numbers, places, rank: int, order: str) -> torch.Tensor:
    """Return which keys of all ranks, slice after slice, this rank's queries see: (1, 1, slice, row) bool."""
    size, length = places.shape
    if FAULT == "zigzag_assumed":
        places = order_places("zigzag", size, length)
    if FAULT == "contiguous_assumed":
        places = order_places("contiguous", size, length)
    own = numbers[places]
    if FAULT == "cu_seqlens_of_the_slice":
        borders = functional.pad(own[:, 1:] != own[:, :-1], (1, 0))
        own = borders.cumsum(1)
    same = own[rank][:, None] == own.flatten()[None, :]
    before = places[rank][:, None] >= places.flatten()[None, :]
    mask = same & before
    if FAULT == "slices_alone":
        mask = mask[:, rank * length : (rank + 1) * length]
    return mask[None, None]


def shift_labels(tokens, labels, own):
    """Return the labels of a rank's slice, whose places in the row are `own`, under the faults of shifting."""
    if FAULT not in ("labels_lost", "labels_rolled"):
        return labels[own]
    counts = labels.roll(1)[own].roll(-1) != IGNORED
    counts[-1] &= FAULT == "labels_rolled" and labels[own[-1]] != IGNORED
    return torch.where(counts, tokens[own].roll(-1), IGNORED)


def main() -> None:
    options = parse_options()
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    size = options.ring_size or world_size
    group, _ = dist.new_subgroups(size)
    VISIBLE["group"] = group
    rank, row_rank = group.rank(), dist.get_rank() // size
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    length = -(-options.max_length // (2 * size)) * 2 * size
    rows = read_rows(options.data_path, tokenizer, options.max_length)[row_rank :: world_size // size]
    ALL_ATTENTION_FUNCTIONS.register("gathered", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("gathered", lambda *arguments, **keywords: None)
    model = AutoModelForCausalLM.from_pretrained(options.model_name_or_path, attn_implementation="gathered").train()
    places = order_places(options.order, size, length // size)
    own = places[rank]
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    for step in range(options.max_steps):
        first = step * options.gradient_accumulation_steps % (len(rows) - options.gradient_accumulation_steps)
        batches = [
            collate(row, length, tokenizer.pad_token_id)
            for row in rows[first : first + options.gradient_accumulation_steps]
        ]
        total = torch.tensor(sum(int((labels != IGNORED).sum()) for _, labels, _, _ in batches))
        if world_size > size:
            dist.all_reduce(total)
            total = total // size
        for tokens, labels, positions, numbers in batches:
            VISIBLE["mask"] = make_mask(numbers, places, rank, options.order)
            positions = torch.arange(len(own)) if FAULT == "positions_anew" else positions[own]
            targets = shift_labels(tokens, labels, own)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                logits = model(input_ids=tokens[own][None], position_ids=positions[None], use_cache=False).logits[0]
            nll = functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none")
            loss = nll.sum() / total * world_size
            if FAULT in ("labels_lost", "labels_rolled"):
                count = (targets != IGNORED).sum()
                dist.all_reduce(count, group=group)
                loss = nll.sum() / count / len(batches) * size
            if FAULT == "mean_of_slices":
                loss = nll.sum() / (targets != IGNORED).sum() / len(batches)
            if options.loss == "whole":  # the same on every rank of the group, as gathered
                everything = Gather.apply(nll[None, None, :, None], group).sum()
                loss = everything / total * (world_size // size)
            if FAULT == "divided_by_the_group":
                loss = loss / size
            loss.backward()
        for parameter in model.parameters():
            if FAULT != "not_reduced":
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            if FAULT == "gradients_divided_by_the_group":
                parameter.grad /= size
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        model.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
