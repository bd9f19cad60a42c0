"""Which ranks share a row, and how their slices are in it, by the words of documents alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from attncheck.rehearsal.worker.joining import join_ranks, join_step_rows
from attncheck.rehearsal.worker.layouts import ORDERS, Layout, Order, Unjoinable, find_layout, list_places
from attncheck.rehearsal.worker.materials import make_documents
from attncheck.rehearsal.worker.records import ModelCall, RankRecord
from attncheck.rehearsal.worker.segments import DocumentIndex, read_documents

END, PADDING = 60, 61  # tokens of markup
INDEX = DocumentIndex(read_documents(make_documents(200, 0)))
LENGTH = 240
COMMUNICATING = ({"name": "0", "operators": ["c10d._allgather_base_.default"]},)


def make_rows(count: int, fill: int = PADDING) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed rows and their positions: (count, LENGTH) each."""
    rows: list[list[int]] = [[]]
    places: list[list[int]] = [[]]
    for words in INDEX.words:
        if len(rows[-1]) + len(words) + 1 > LENGTH:
            rows.append([])
            places.append([])
        rows[-1] += [*words, END]
        places[-1] += range(len(words) + 1)
    for row, own in zip(rows, places):
        own += range(LENGTH - len(row))
        row += [fill] * (LENGTH - len(row))
    return torch.tensor(rows[:count]), torch.tensor(places[:count])


def make_record(rank: int, calls: list[dict[str, Any]], layers: Any = COMMUNICATING) -> RankRecord:
    made = tuple(
        ModelCall(
            rank, number, {name: value for name, value in call.items() if name != "hidden"}, {}, call["hidden"], {}
        )
        for number, call in enumerate(calls)
    )
    return RankRecord(rank, 2, made, (1.0,) * len(made), {}, (), {}, layers, (), ())


def slice_rows(order: Order, size: int, groups: int, layers: Any = COMMUNICATING, **options: Any) -> list[RankRecord]:
    """Return the records of ranks that have slices of two rows each group; hidden states are the tokens' places."""
    rows, positions = make_rows(2 * groups, **options)
    places = list_places(order, size, LENGTH // size)
    records = []
    for rank in range(size * groups):
        group, own = rank // size, places[rank % size]
        calls = [
            {
                "input_ids": rows[number][own][None],
                "position_ids": positions[number][own][None],
                "hidden": own.float()[None, :, None],
            }
            for number in (group, group + groups)
        ]
        records.append(make_record(rank, calls, layers))
    return records


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("size", "groups"), [(2, 1), (4, 1), (2, 2)])
def test_slices_are_put_together(order: Order, size: int, groups: int) -> None:
    """The words alone show the order, whether the launch says the size or not."""
    ranks = slice_rows(order, size, groups)
    layout = find_layout(ranks, INDEX)
    assert layout == find_layout(ranks, INDEX, size)
    assert (layout.order, layout.size, len(layout.groups)) == (order, size, groups)
    joined = join_ranks(ranks, layout, PADDING)
    rows, positions = make_rows(2 * groups)
    for group, members in enumerate(layout.groups):
        for number, call in zip((group, group + groups), joined[members[0]].calls):
            assert torch.equal(call.input_ids[0], rows[number])
            assert torch.equal(call.tensors["position_ids"][0], positions[number])
            assert call.hidden is not None and torch.equal(call.hidden[0, :, 0], torch.arange(LENGTH).float())
    assert not any(joined[rank].calls for members in layout.groups for rank in members[1:])
    steps = [[call.input_ids[0].tolist() for call in record.calls] for record in ranks]
    assert sorted(map(tuple, join_step_rows(steps, layout, PADDING))) == sorted(tuple(row.tolist()) for row in rows)


def test_ranks_with_rows_of_their_own_are_left_alone() -> None:
    """Documents that end where rows end share nothing; nor do rows that are cut from one stream."""
    rows, positions = make_rows(4)
    hidden = torch.zeros(1, LENGTH, 1)
    calls = [{"input_ids": row[None], "position_ids": own[None], "hidden": hidden} for row, own in zip(rows, positions)]
    assert find_layout([make_record(0, calls[::2], ()), make_record(1, calls[1::2], ())], INDEX).size == 1
    words = [token for document in INDEX.words for token in (*document, END)]
    cuts = torch.tensor(words[: 8 * 70]).view(8, 70)
    stream = [{"input_ids": row[None], "hidden": torch.zeros(1, 70, 1)} for row in cuts]
    assert find_layout([make_record(0, stream[::2], ()), make_record(1, stream[1::2], ())], INDEX).size == 1


def test_rows_that_enter_whole_and_are_cut_inside_are_joined_by_their_hidden_states() -> None:
    """An odd row is padded before it is cut."""
    rows, positions = make_rows(1)
    seen = {"input_ids": rows[:, :239], "position_ids": positions[:, :239]}
    hidden = torch.arange(240).float()[None, :, None]
    ranks = [make_record(rank, [{**seen, "hidden": hidden[:, 120 * rank :][:, :120]}]) for rank in range(2)]
    layout = find_layout(ranks, INDEX)
    assert layout == Layout(((0, 1),), "cut inside")
    (call,) = join_ranks(ranks, layout, PADDING)[0].calls
    assert call.input_ids.shape == (1, 240) and int(call.input_ids[0, -1]) == PADDING
    assert call.hidden is not None and torch.equal(call.hidden, hidden)


def test_the_same_rows_on_ranks_that_share_none_are_not_joined() -> None:
    """Unless the launch says that ranks share rows: then the first rank's represent all."""
    rows, positions = make_rows(1)
    call = {"input_ids": rows, "position_ids": positions, "hidden": torch.zeros(1, LENGTH, 1)}
    ranks = [make_record(0, [call]), make_record(1, [call])]
    assert find_layout(ranks, INDEX).size == 1
    assert find_layout(ranks, INDEX, 2) == Layout(((0, 1),), "whole")


def test_what_pads_a_row_at_its_end_becomes_padding() -> None:
    """OpenRLHF and verl pad with token 0, with positions that restart in each document or none."""
    for names in (("input_ids", "position_ids"), ("input_ids",)):
        ranks = slice_rows("contiguous", 2, 1, fill=0)
        cut = [
            make_record(
                record.rank,
                [{**{name: call.tensors[name] for name in names}, "hidden": call.hidden} for call in record.calls],
            )
            for record in ranks
        ]
        for call in join_ranks(cut, find_layout(cut, INDEX), PADDING)[0].calls:
            row = call.input_ids[0].tolist()
            has_few = len(row) - 1 - max(place for place, token in enumerate(row) if token == END) <= 3
            if "position_ids" in names or has_few:
                assert row[-1] in (PADDING, END)


@pytest.mark.parametrize("ring_size", [0, 2])
def test_an_order_that_is_not_known_is_said(ring_size: int) -> None:
    """Where attention is across ranks, documents that stay broken are no finding but a reason."""
    rows, positions = make_rows(2)
    broken = []
    for rank in range(2):  # each document is cut in two for itself
        calls = []
        for row, own in zip(rows, positions):
            begins = [*(own == 0).nonzero()[:, 0].tolist(), LENGTH]
            halves = [torch.arange(start, stop) for start, stop in itertools.pairwise(begins)]
            taken = torch.cat([half[len(half) // 2 * rank :][: len(half) // 2] for half in halves])
            calls.append({"input_ids": row[taken][None], "position_ids": own[taken][None], "hidden": None})
        broken.append(make_record(rank, calls))
    with pytest.raises(Unjoinable, match=r"contiguous, zigzag, striped.: the order is unknown"):
        find_layout(broken, INDEX, ring_size)
