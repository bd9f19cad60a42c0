"""Joins the slices of rows: one call of the whole row replaces the calls of the ranks that share it.

Tokens, labels, position_ids and hidden states are joined in the same way. Tokens that extend a row to a divisible
length become padding. Shifted labels (`shift_labels`, transformers 5.17.0 loss/loss_utils.py) are moved back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attncheck.rehearsal.worker.layouts import ORDERS, Layout, Unjoinable, join_row
from attncheck.rehearsal.worker.records import IGNORED, ModelCall, RankRecord
from attncheck.rehearsal.worker.segments import find_borders
from attncheck.rehearsal.worker.vocabulary import MADE, Vocabulary


def join_ranks(
    ranks: Sequence[RankRecord], layout: Layout, padding: int, vocabulary: Vocabulary = MADE
) -> tuple[RankRecord, ...]:
    """Return the records with each row's calls joined in the first rank of its group; the others have no calls."""
    if layout.size == 1:
        return tuple(replace(record, calls=tuple(map(place_labels, record.calls))) for record in ranks)
    by_rank = {record.rank: record for record in ranks}
    joined: dict[int, tuple[ModelCall, ...]] = {}
    for group in layout.groups:
        calls = [by_rank[rank].calls for rank in group]
        if len({len(own) for own in calls}) > 1:
            raise Unjoinable(
                f"the ranks {', '.join(map(str, group))} share rows but call the model different numbers of times"
            )
        joined[group[0]] = tuple(_join_calls(parts, layout, padding, vocabulary) for parts in zip(*calls))
    return tuple(replace(record, calls=joined.get(record.rank, ())) for record in ranks)


def list_parts(ranks: Sequence[Mapping[str, Tensor]], model: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """Return the tensors that ranks hold parts of, by the name of the model's parameter."""
    return {
        name: parts
        for name, whole in model.items()
        if (parts := [own[name] for own in ranks if name in own]) and any(part.shape != whole.shape for part in parts)
    }


def join_parts(ranks: Sequence[RankRecord], model: Mapping[str, Tensor]) -> tuple[RankRecord, ...]:
    """Return the records with whole gradients, without those of parameters whose parts are incomplete."""
    gradients = _join_all([record.gradients for record in ranks], model)
    backward = _join_all([record.backward for record in ranks], model)
    return tuple(
        replace(
            record,
            gradients=own,
            backward=before,
            trainable=tuple(name for name in record.trainable if name in own or name not in record.gradients),
        )
        for record, own, before in zip(ranks, gradients, backward, strict=True)
    )


def _join_all(ranks: Sequence[Mapping[str, Tensor]], model: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    parts = list_parts(ranks, model)
    joined = {name: whole for name, own in parts.items() if (whole := _join_parts(own, model[name].shape)) is not None}
    return [
        {name: value for name, value in own.items() if name not in parts} | (joined if own else {}) for own in ranks
    ]


def _join_parts(parts: Sequence[Tensor], shape: torch.Size) -> Tensor | None:
    """Return the tensor of this shape that equal parts form along one dimension, None if they do not fit."""
    for dim, length in enumerate(shape):
        part = torch.Size((*shape[:dim], length // len(parts), *shape[dim + 1 :]))
        if length % len(parts) == 0 and all(own.shape == part for own in parts):
            return torch.cat(list(parts), dim)
    return None


def join_step_rows(
    rows: Sequence[Sequence[Sequence[int]]], layout: Layout, padding: int, vocabulary: Vocabulary = MADE
) -> list[list[int]]:
    """Return the rows of a later step from each rank's slices, which are given in the order of ranks.

    Hidden tokens are negative (the watcher's `mark_hidden`): at a row's ends they are padding, and a mask may hide a
    document's word.
    """
    return [_leave_hidden_ends(row) for row in _join_step_rows(rows, layout, padding, vocabulary)]


def _leave_hidden_ends(row: Sequence[int]) -> list[int]:
    seen = [place for place, token in enumerate(row) if token >= 0]
    return [token if token >= 0 else -1 - token for token in row[seen[0] : seen[-1] + 1]] if seen else []


def _join_step_rows(
    rows: Sequence[Sequence[Sequence[int]]], layout: Layout, padding: int, vocabulary: Vocabulary
) -> list[list[int]]:
    if layout.size == 1:
        return [list(row) for own in rows for row in own]
    by_rank = dict(zip(sorted(rank for group in layout.groups for rank in group), rows))
    if layout.order not in ORDERS:
        return [list(row) for group in layout.groups for row in by_rank[group[0]]]
    joined = [
        join_row(layout, slices)
        for group in layout.groups
        for slices in zip(*(by_rank[rank] for rank in group))
        if len({len(part) for part in slices}) == 1 and (layout.order != "zigzag" or len(slices[0]) % 2 == 0)
    ]
    longest = 2 * layout.size - 1
    batches = [{"input_ids": torch.tensor([row])} for row in joined]
    return [_mark_padding(batch, padding, longest, vocabulary)[0].tolist() for batch in batches]


def _join_calls(calls: Sequence[ModelCall], layout: Layout, padding: int, vocabulary: Vocabulary) -> ModelCall:
    """Return the call of the whole row from the slices in the calls of a group's ranks."""
    first, length = calls[0], calls[0].input_ids.shape[1]
    if layout.order == "whole":
        return place_labels(first)
    if layout.order == "cut inside":
        return place_labels(_join_inside(calls, layout, padding))
    if any(call.input_ids.shape != first.input_ids.shape for call in calls):
        raise Unjoinable("slices of one row have different lengths")
    places = layout.list_places(length)
    tensors: dict[str, Tensor] = {}
    for name, tensor in first.tensors.items():
        parts = [call.tensors[name] for call in calls if name in call.tensors]
        # the document boundaries of a slice do not describe the whole row
        if len(parts) == len(calls) and (not name.startswith("cu_seq") or int(tensor.flatten()[-1]) >= places.numel()):
            tensors[name] = _join_tensors(parts, places, -1) if _is_sliced(tensor, length) else tensor
    states = [call.hidden for call in calls if call.hidden is not None]
    is_seen = len(states) == len(calls) and all(state.shape[:-1] == first.input_ids.shape for state in states)
    joined = replace(
        first, tensors=tensors, hidden=_join_tensors(states, places, 1) if is_seen else None, places=places
    )
    call = place_labels(joined)
    input_ids = _mark_padding(call.tensors, padding, 2 * layout.size - 1, vocabulary)
    return replace(call, tensors={**call.tensors, "input_ids": input_ids})


def _is_sliced(tensor: Tensor, length: int) -> bool:
    return tensor.dim() > 1 and tensor.shape[-1] == length


def _join_tensors(tensors: Sequence[Tensor], places: Tensor, dim: int) -> Tensor:
    """Return slices as one tensor, with each token at its position along `dim`."""
    return torch.cat(list(tensors), dim).index_select(dim, places.flatten().argsort())


def _join_inside(calls: Sequence[ModelCall], layout: Layout, padding: int) -> ModelCall:
    """Return the call of a row that every rank received whole, and that was padded and split inside."""
    first, length = calls[0], calls[0].input_ids.shape[1]
    hidden = torch.cat([call.hidden for call in calls if call.hidden is not None], 1)
    fills = {"input_ids": padding, "labels": IGNORED, "shift_labels": IGNORED}
    tensors = {
        name: pad(tensor, (0, hidden.shape[1] - length), value=fills.get(name, 0))
        if _is_sliced(tensor, length)
        else tensor
        for name, tensor in first.tensors.items()
    }
    return replace(first, tensors=tensors, hidden=hidden, places=layout.list_places(hidden.shape[1] // layout.size))


def place_labels(call: ModelCall) -> ModelCall:
    """Return a call with labels at their own tokens, if they were at the previous ones."""
    shifted = call.tensors.get("shift_labels")
    if shifted is None or shifted.shape != call.input_ids.shape:
        return call
    return replace(call, tensors={**call.tensors, "labels": pad(shifted[:, :-1], (1, 0), value=IGNORED)})


def _mark_padding(tensors: Mapping[str, Any], padding: int, longest: int, vocabulary: Vocabulary) -> Tensor:
    """Return the tokens of rows; those that extend a row's end to a divisible length are replaced by `padding`.

    Such padding is one repeated token, 0 (OpenRLHF, verl) or a word. It begins where positions restart or, for
    at most `longest` tokens, after markup.
    """
    rows: Tensor = tensors["input_ids"].clone()
    for number, row in enumerate(rows.tolist()):
        start = len(row)
        while start and row[start - 1] == row[-1]:
            start -= 1
        if not (row[-1] == 0 or vocabulary.is_word(row[-1])) or not start:
            continue
        begun = [border for border in find_borders(tensors, number, len(row)) if border >= start]
        follows_markup = not vocabulary.is_word(row[start - 1]) and len(row) - start <= longest
        if begun or (follows_markup and not _is_labelled(tensors, number, start)):
            rows[number, begun[0] if begun else start :] = padding
    return rows


def _is_labelled(tensors: Mapping[str, Any], row: int, start: int) -> bool:
    labels = tensors.get("labels")
    return labels is not None and bool((labels[row, start:] != IGNORED).any())
