"""Packs documents into rows and makes the tensors that a plan passes to the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from attncheck.core.plan import Plan

IGNORE_INDEX = -100


@dataclass(frozen=True)
class DocumentSpan:
    """The location of a document in a batch: its row, its first token and its last token + 1."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """Keyword arguments for the model, and the location of each document in `input_ids` (rows, tokens).

    `labels` (rows, tokens) holds each token's target: the next token of its document, or IGNORE_INDEX. They are already
    shifted.
    """

    inputs: dict[str, Any]
    labels: Tensor
    spans: tuple[DocumentSpan, ...]

    @property
    def predicted_tokens(self) -> int:
        """The number of tokens with a label to predict."""
        return int((self.labels != IGNORE_INDEX).sum())


def pack_rows(documents: Sequence[Tensor], max_length: int) -> list[list[Tensor]]:
    """Return documents packed into rows of at most `max_length` tokens: best fit decreasing, as TRL's `bfd` does.

    A longer document is cut into pieces that count as separate documents.
    """
    pieces = [piece for document in documents for piece in document.split(max_length)]
    rows: list[list[Tensor]] = []
    room: list[int] = []
    for piece in sorted(pieces, key=len, reverse=True):
        rows_with_room = [index for index, free in enumerate(room) if free >= len(piece)]
        if not rows_with_room:
            rows.append([])
            room.append(max_length)
            rows_with_room = [len(rows) - 1]
        best = min(rows_with_room, key=lambda index: room[index])
        rows[best].append(piece)
        room[best] -= len(piece)
    return rows


def make_batch(
    rows: Sequence[Sequence[Tensor]], plan: Plan, device: Any, pad_token_id: int, dtype: torch.dtype
) -> Batch:
    """Return rows of documents as the plan's tensors. If rows differ in length, the shorter ones are padded.

    With `packing="padding"` every document has its own row, padded on the plan's side, with a 2-D mask.
    """
    if not plan.packed:
        return pad_documents([document for row in rows for document in row], plan.padding_side, device, pad_token_id)
    width = max(sum(map(len, row)) for row in rows)
    spans, tokens, labels, positions = [], [], [], []
    for index, row in enumerate(rows):
        boundaries = list(accumulate(map(len, row), initial=0))
        spans += [DocumentSpan(index, start, stop) for start, stop in pairwise(boundaries)]
        padding = width - boundaries[-1]
        parts = [*row, torch.full((padding,), pad_token_id)] if padding else list(row)
        tokens.append(torch.cat(parts))
        labels.append(torch.cat([*map(next_token_labels, row), torch.full((padding,), IGNORE_INDEX)]))
        positions.append(torch.cat([torch.arange(len(part)) for part in parts]))
    input_ids = torch.stack(tokens).to(device)
    inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": plan.use_cache}
    position_ids = torch.stack(positions).to(device)
    if plan.positions == "running":
        position_ids = torch.arange(width, device=device).expand(len(rows), width).contiguous()
    axes = {"reset_3d": 3, "reset_4d": 4}.get(plan.positions)
    inputs["position_ids"] = position_ids.expand(axes, *position_ids.shape) if axes else position_ids
    inputs |= _boundary_inputs(plan, rows, width, device, dtype)
    return Batch(inputs, torch.stack(labels).to(device), tuple(spans))


def _boundary_inputs(
    plan: Plan, rows: Sequence[Sequence[Tensor]], width: int, device: Any, dtype: torch.dtype
) -> dict[str, Any]:
    """Return the inputs besides positions with which the plan separates the documents of a row."""
    if plan.packing == "mask_2d":
        return {"attention_mask": torch.ones(len(rows), width, dtype=torch.long, device=device)}
    if plan.packing == "mask_4d":
        return {"attention_mask": block_diagonal_mask(rows, width, device, dtype)}
    if plan.packing == "cu_seqlens":
        lengths = [length for row in rows for length in _row_lengths(row, width)]
        cu_seqlens = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device)
        max_seqlen = max(lengths)
        return {
            "cu_seq_lens_q": cu_seqlens,
            "cu_seq_lens_k": cu_seqlens,
            "max_length_q": max_seqlen,
            "max_length_k": max_seqlen,
        }
    return {}


def _row_lengths(row: Sequence[Tensor], width: int) -> list[int]:
    lengths = [len(document) for document in row]
    padding = width - sum(lengths)
    return [*lengths, padding] if padding else lengths


def block_diagonal_mask(rows: Sequence[Sequence[Tensor]], width: int, device: Any, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (rows, 1, width, width) with which a token attends to its own document's past."""
    document_ids = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        counts = torch.tensor(_row_lengths(row, width))
        document_ids[index] = torch.arange(len(counts)).repeat_interleave(counts)
    visible = (document_ids[:, :, None] == document_ids[:, None, :]) & torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.zeros(len(rows), 1, width, width, dtype=dtype)
    return mask.masked_fill(~visible[:, None], torch.finfo(dtype).min).to(device)


def pad_documents(
    documents: Sequence[Tensor], side: str, device: Any, pad_token_id: int, plan: Plan | None = None
) -> Batch:
    """Return documents as rows padded to the longest, with a 2-D mask, as from a tokenizer's `pad`."""
    width = max(map(len, documents))
    input_ids = torch.full((len(documents), width), pad_token_id)
    labels = torch.full((len(documents), width), IGNORE_INDEX)
    mask = torch.zeros(len(documents), width, dtype=torch.long)
    spans = []
    for row, document in enumerate(documents):
        start = width - len(document) if side == "left" else 0
        stop = start + len(document)
        input_ids[row, start:stop], labels[row, start:stop], mask[row, start:stop] = (
            document,
            next_token_labels(document),
            1,
        )
        spans.append(DocumentSpan(row, start, stop))
    use_cache = plan.use_cache if plan is not None else False
    inputs = {"input_ids": input_ids.to(device), "attention_mask": mask.to(device), "use_cache": use_cache}
    return Batch(inputs, labels.to(device), tuple(spans))


def next_token_labels(document: Tensor) -> Tensor:
    """Return the label of each token of a document: the next token; IGNORE_INDEX for the last one."""
    return torch.cat([document[1:], torch.full((1,), IGNORE_INDEX)]) if len(document) else document
