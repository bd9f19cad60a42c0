"""Determines how rows are split across ranks: which ranks share a row, and the order of their slices.

The words show it: each document's tokens are contiguous, so the row's order is the one that breaks the fewest
documents. Slices of a row look like rows cut from one stream of documents. If the launch does not say that its rows are
split, rows are treated as slices only if the joined rows begin with documents, or if attention communicates and
positions continue across ranks.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from attncheck.rehearsal.worker.records import ModelCall, RankRecord
from attncheck.rehearsal.worker.segments import MAX_WORDS, SEED_WORDS, DocumentIndex

Order = Literal["contiguous", "zigzag", "striped", "whole", "cut inside"]
ORDERS: tuple[Order, ...] = get_args(Order)[:3]
ORDER_TEXTS: dict[Order, str] = {
    "contiguous": "contiguous slices",
    "zigzag": "zigzag slices",
    "striped": "striped slices",
    "whole": "the whole row on each",
    "cut inside": "the whole row is passed to each rank, and split into contiguous slices inside the model",
}
CROSSED_SHARE = 0.5  # share of the borders between slices: a document continues at nearly each
HEADLESS_SHARE = 0.25  # share of rows that begin within a document, among continuing documents: slices, not a stream
BROKEN_SHARE = 0.5  # share of the borders within rows: if more break documents, the order is unknown
COMMUNICATION = "c10d"  # collectives in the watcher's operator names


@dataclass(frozen=True)
class Layout:
    """How rows are split: `groups` of ranks share a row each, their slices in `order`. Groups of one: not split."""

    groups: tuple[tuple[int, ...], ...]
    order: Order = "whole"

    @property
    def size(self) -> int:
        """The number of ranks that share a row."""
        return len(self.groups[0])

    def list_places(self, length: int) -> Tensor:
        """Return the position in the row of each token of each slice of `length` tokens: (ranks, length)."""
        return list_places(self.order, self.size, length)


class Unjoinable(ValueError):
    """Rows that are split across ranks in an unknown way."""


def list_places(order: Order, size: int, length: int) -> Tensor:
    """Return the position in a row of each token of each of `size` slices of `length` tokens: (size, length).

    Zigzag: the row has 2 × size chunks, rank r has the chunks r and 2 × size − 1 − r; `length` is even.
    """
    if order == "striped":
        return torch.arange(size * length).view(length, size).T.contiguous()
    if order == "zigzag":
        chunks = torch.arange(size * length).view(2 * size, length // 2)
        return torch.cat([chunks[:size], chunks[size:].flip(0)], 1)
    return torch.arange(size * length).view(size, length)


def find_layout(ranks: Sequence[RankRecord], index: DocumentIndex, ring_size: int = 1) -> Layout:
    """Return how the rows of the ranks' first steps are split; the launch's `ring_size` ranks share one, if any.

    Raises `Unjoinable` if the launch splits its rows and no known order restores their documents.
    """
    alone = Layout(tuple((record.rank,) for record in ranks))
    layouts = list(_iter_groupings([record.rank for record in ranks], ring_size))
    by_rank = {record.rank: record.calls for record in ranks}
    for layout in layouts:
        if _enters_whole(layout, by_rank, ring_size):
            return layout
    own_rows = [row for record in ranks for row in _list_rows(record.calls)]
    before = _count_all_pieces(own_rows, index)
    trials = [
        (_count_all_pieces(rows, index), number, layout, rows)
        for number, layout in enumerate(layouts)
        if layout.order in ORDERS and (rows := _join_rows(layout, by_rank)) is not None
    ]
    after, _, layout, rows = min(trials, default=(before, 0, alone, own_rows))
    crossing = _count_crossing(rows, layout, index) if after < before else 0
    if not crossing or not (ring_size > 1 or _are_slices(crossing, rows, layout, ranks, index)):
        layout, rows = alone, own_rows
    if (ring_size > 1 or shares_attention(ranks)) and _measure_breaks(rows, index) > BROKEN_SHARE:
        raise Unjoinable(
            "attention spans several ranks, and documents do not fit together in any known order of their slices "
            f"({', '.join(ORDERS)}): the order is unknown, or documents are truncated"
        )
    return layout


def keep_rows_whole(ranks: Sequence[RankRecord]) -> Layout:
    """Return the layout of rows that are not split. Raises `Unjoinable` if attention spans several ranks."""
    if shares_attention(ranks):
        raise Unjoinable(
            "attention spans several ranks: their slices can only be reassembled with synthetic "
            "words, so remove --real-data"
        )
    return Layout(tuple((record.rank,) for record in ranks))


def _iter_groupings(ranks: Sequence[int], ring_size: int) -> Iterator[Layout]:
    """Yield the possible layouts: neighbours share a row, or ranks that are as far apart as possible."""
    world = len(ranks)
    sizes = [ring_size] if ring_size > 1 else [size for size in range(2, world + 1) if world % size == 0]
    for size in sizes:
        if world % size:
            continue
        neighbours = tuple(tuple(ranks[first : first + size]) for first in range(0, world, size))
        apart = tuple(tuple(ranks[first :: world // size]) for first in range(world // size))
        for groups in dict.fromkeys((neighbours, apart)):
            yield from (Layout(groups, order) for order in (*ORDERS, "cut inside", "whole"))


def _enters_whole(layout: Layout, by_rank: dict[int, tuple[ModelCall, ...]], ring_size: int) -> bool:
    """Return whether the ranks of each group get the same rows, and the model's outputs fit."""
    if layout.order in ORDERS:
        return False
    for group in layout.groups:
        first, *others = (by_rank[rank] for rank in group)
        if not first or any(len(calls) != len(first) for calls in others):
            return False
        for calls in zip(first, *others):
            if any(not torch.equal(call.input_ids, calls[0].input_ids) for call in calls[1:]):
                return False
            lengths = {call.hidden.shape[1] if call.hidden is not None else 0 for call in calls}
            is_cut = lengths == {-(-calls[0].input_ids.shape[1] // len(group))}  # padded to a divisible length
            if is_cut != (layout.order == "cut inside"):
                return False
    return layout.order == "cut inside" or ring_size > 1  # otherwise the same data are used twice, which is a fault


def _list_rows(calls: Sequence[ModelCall]) -> list[list[int]]:
    return [row for call in calls for row in call.input_ids.tolist()]


def _join_rows(layout: Layout, by_rank: dict[int, tuple[ModelCall, ...]]) -> list[list[int]] | None:
    """Return the rows that the slices form in a layout, None if they do not fit together."""
    rows: list[list[int]] = []
    for group in layout.groups:
        slices = [_list_rows(by_rank[rank]) for rank in group]
        if len({len(parts) for parts in slices}) > 1:
            return None
        for parts in zip(*slices):
            length = len(parts[0])
            if any(len(part) != length for part in parts) or (layout.order == "zigzag" and length % 2):
                return None
            rows.append(join_row(layout, parts))
    return rows


def join_row(layout: Layout, slices: Sequence[Sequence[int]]) -> list[int]:
    """Return the row of these slices, which are in the order of the group's ranks."""
    places = layout.list_places(len(slices[0]))
    row = torch.empty(places.numel(), dtype=torch.long)
    row[places.flatten()] = torch.tensor([list(part) for part in slices]).flatten()
    return [int(token) for token in row]


def shares_attention(ranks: Sequence[RankRecord]) -> bool:
    """Return whether attention must span several ranks: collectives in it may also be ZeRO-3's, for weights."""
    return attention_communicates(ranks) and not any("deepspeed" in record.packages for record in ranks)


def attention_communicates(ranks: Sequence[RankRecord]) -> bool:
    """Return whether a collective ran inside an attention layer."""
    operators = [operator for record in ranks for layer in record.layers for operator in layer["operators"]]
    return any(COMMUNICATION in operator for operator in operators)


def _count_all_pieces(rows: Sequence[Sequence[int]], index: DocumentIndex) -> int:
    return sum(len(list(_iter_pieces(row, index))) for row in rows)


def _measure_breaks(rows: Sequence[Sequence[int]], index: DocumentIndex) -> float:
    """Return the share of boundaries within rows at which one document does not end where another begins."""
    broken = total = 0
    for row in rows:
        for before, after in itertools.pairwise(_iter_pieces(row, index)):
            document, offset, length = before
            total += 1
            broken += document < 0 or offset + length < len(index.words[document]) or after[1] > 0
    return broken / total if total else 0.0


def _iter_pieces(row: Sequence[int], index: DocumentIndex) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces of documents in a row's words: document (-1: none), offset, length."""
    words = index.vocabulary.read(row)
    position = 0
    while position < len(words):
        piece = index.find_piece(words[position : position + MAX_WORDS])
        yield piece
        position += piece[2]


def _count_crossing(rows: Sequence[Sequence[int]], layout: Layout, index: DocumentIndex) -> int:
    """Return the number of pieces in the joined rows that are on more than one rank."""
    count = 0
    for row in rows:
        places = layout.list_places(len(row) // layout.size)
        holder = torch.empty(len(row), dtype=torch.long)
        holder[places] = torch.arange(layout.size)[:, None].expand_as(places)
        holders = [rank for rank, token in zip(holder.tolist(), row) if index.vocabulary.is_word(token)]
        position = 0
        for document, _, length in _iter_pieces(row, index):
            ranks = set(holders[position : position + length])
            count += document >= 0 and length >= SEED_WORDS and len(ranks) > 1
            position += length
    return count


def _begins_within(row: Sequence[int], index: DocumentIndex) -> bool:
    words = index.vocabulary.read(row)
    return bool(words) and index.find_piece(words[:MAX_WORDS])[1] > 0


def _are_slices(
    crossing: int, rows: Sequence[Sequence[int]], layout: Layout, ranks: Sequence[RankRecord], index: DocumentIndex
) -> bool:
    """Return whether documents that continue in another slice were split for ranks.

    Otherwise they were split at the end of a stream's row.
    """
    if crossing < CROSSED_SHARE * len(rows) * (layout.size - 1):
        return False
    if sum(_begins_within(row, index) for row in rows) <= HEADLESS_SHARE * crossing:
        return True
    if not shares_attention(ranks):
        return False
    followers = {rank for group in layout.groups for rank in group[1:]}
    calls = [call for record in ranks if record.rank in followers for call in record.calls]
    begun = [bool((call.tensors["position_ids"][..., 0] > 0).any()) for call in calls if "position_ids" in call.tensors]
    return bool(begun) and 2 * sum(begun) >= len(begun)
