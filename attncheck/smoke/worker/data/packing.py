"""Lays documents into rows and makes the tensors that a plan gives to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from attncheck.core.plan import Plan

IGNORED = -100


@dataclass(frozen=True)
class Spot:
    """Where a document lies: its row and its first and last token + 1."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """Keywords for the model, and where each document lies in `input_ids` (rows, tokens).

    `labels` (rows, tokens) holds at each token what it is to predict, the next token of its own document, or IGNORED:
    they are shifted already.
    """

    inputs: dict[str, Any]
    labels: Tensor
    spots: tuple[Spot, ...]

    @property
    def tokens(self) -> int:
        """How many tokens are predicted."""
        return int((self.labels != IGNORED).sum())


def rows_of(documents: Sequence[Tensor], longest: int) -> list[list[Tensor]]:
    """Return documents laid into rows of at most `longest` tokens: best fit decreasing, as TRL's `bfd` does.

    A longer document is cut into pieces that are documents of their own.
    """
    pieces = [piece for document in documents for piece in document.split(longest)]
    rows: list[list[Tensor]] = []
    room: list[int] = []
    for piece in sorted(pieces, key=len, reverse=True):
        fitting = [index for index, left in enumerate(room) if left >= len(piece)]
        if not fitting:
            rows.append([])
            room.append(longest)
            fitting = [len(rows) - 1]
        best = min(fitting, key=lambda index: room[index])
        rows[best].append(piece)
        room[best] -= len(piece)
    return rows


def batch(rows: Sequence[Sequence[Tensor]], plan: Plan, device: Any, pad: int, dtype: torch.dtype) -> Batch:
    """Return rows of documents as the plan's tensors. Where rows differ in length, the shorter ones are padded.

    With `packing="padding"` every document is a row of its own, padded on the plan's side, with a 2-D mask.
    """
    if not plan.packed:
        return padded([document for row in rows for document in row], plan.padding_side, device, pad)
    width = max(sum(map(len, row)) for row in rows)
    spots, tokens, labels, positions = [], [], [], []
    for index, row in enumerate(rows):
        edges = list(accumulate(map(len, row), initial=0))
        spots += [Spot(index, start, stop) for start, stop in pairwise(edges)]
        left = width - edges[-1]
        parts = [*row, torch.full((left,), pad)] if left else list(row)
        tokens.append(torch.cat(parts))
        labels.append(torch.cat([*map(following, row), torch.full((left,), IGNORED)]))
        positions.append(torch.cat([torch.arange(len(part)) for part in parts]))
    ids = torch.stack(tokens).to(device)
    inputs: dict[str, Any] = {"input_ids": ids, "use_cache": plan.use_cache}
    where = torch.stack(positions).to(device)
    if plan.positions == "running":
        where = torch.arange(width, device=device).expand(len(rows), width).contiguous()
    layers = {"reset_3d": 3, "reset_4d": 4}.get(plan.positions)
    inputs["position_ids"] = where.expand(layers, *where.shape) if layers else where
    inputs |= _apart(plan, rows, width, device, dtype)
    return Batch(inputs, torch.stack(labels).to(device), tuple(spots))


def _apart(plan: Plan, rows: Sequence[Sequence[Tensor]], width: int, device: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return what, beside positions, the plan tells the model about the documents of a row."""
    if plan.packing == "mask_2d":
        return {"attention_mask": torch.ones(len(rows), width, dtype=torch.long, device=device)}
    if plan.packing == "mask_4d":
        return {"attention_mask": block_diagonal(rows, width, device, dtype)}
    if plan.packing == "cu_seqlens":
        lengths = [length for row in rows for length in _lengths(row, width)]
        edges = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device)
        longest = max(lengths)
        return {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": longest, "max_length_k": longest}
    return {}


def _lengths(row: Sequence[Tensor], width: int) -> list[int]:
    lengths = [len(document) for document in row]
    left = width - sum(lengths)
    return [*lengths, left] if left else lengths


def block_diagonal(rows: Sequence[Sequence[Tensor]], width: int, device: Any, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (rows, 1, width, width) under which a token sees its own document's past."""
    own = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        counts = torch.tensor(_lengths(row, width))
        own[index] = torch.arange(len(counts)).repeat_interleave(counts)
    seen = (own[:, :, None] == own[:, None, :]) & torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.zeros(len(rows), 1, width, width, dtype=dtype)
    return mask.masked_fill(~seen[:, None], torch.finfo(dtype).min).to(device)


def padded(documents: Sequence[Tensor], side: str, device: Any, pad: int, plan: Plan | None = None) -> Batch:
    """Return documents as rows padded to the longest, with a 2-D mask, as a tokenizer's `pad` makes them."""
    width = max(map(len, documents))
    ids = torch.full((len(documents), width), pad)
    labels = torch.full((len(documents), width), IGNORED)
    mask = torch.zeros(len(documents), width, dtype=torch.long)
    spots = []
    for row, document in enumerate(documents):
        start = width - len(document) if side == "left" else 0
        stop = start + len(document)
        ids[row, start:stop], labels[row, start:stop], mask[row, start:stop] = document, following(document), 1
        spots.append(Spot(row, start, stop))
    cache = plan.use_cache if plan is not None else False
    inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device), "use_cache": cache}
    return Batch(inputs, labels.to(device), tuple(spots))


def following(document: Tensor) -> Tensor:
    """Return what each token of a document is to predict: the next one; the last one nothing."""
    return torch.cat([document[1:], torch.full((1,), IGNORED)]) if len(document) else document
