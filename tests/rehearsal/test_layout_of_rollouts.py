"""Rollouts as the trainers lay them, and the rows that the watcher keeps: padding is the token 0, which is a word."""

from __future__ import annotations

import torch

from attncheck.rehearsal.drivers.rollouts import Rollout, lay_padded
from attncheck.rehearsal.watcher.batches import mark_hidden
from attncheck.rehearsal.worker.joining import join_step_rows
from attncheck.rehearsal.worker.layouts import Layout

ROLLOUTS = (Rollout(0, (5, 6, 7), (8, 9), 0.5), Rollout(1, (4,), (3, 2, 1), -1.0))


def test_prompts_are_padded_on_the_left_and_responses_on_the_right() -> None:
    tokens, seen, mask = lay_padded(ROLLOUTS)
    assert tokens.tolist() == [[5, 6, 7, 8, 9, 0], [0, 0, 4, 3, 2, 1]]
    assert seen.tolist() == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert lay_padded(ROLLOUTS, 4, 5)[0].tolist()[1] == [0, 0, 0, 4, 3, 2, 1, 0, 0]


def test_padding_that_a_mask_hides_is_in_no_row() -> None:
    tokens, seen, _ = lay_padded(ROLLOUTS)
    rows, alone = [[5, 6, 7, 8, 9], [4, 3, 2, 1]], Layout(((0,),))
    packed = torch.tensor([[1, 1, 1, 2, 2, 0]])  # numbers of documents
    for mask in (seen, seen.bool()):
        assert join_step_rows([mark_hidden(tokens, mask).tolist()], alone, 99) == rows
    assert join_step_rows([mark_hidden(tokens[:1], packed).tolist()], alone, 99) == rows[:1]
    for mask in (None, seen[:, None, None], seen[0]):  # of another form
        assert mark_hidden(tokens, mask).tolist() == tokens.tolist()
    assert mark_hidden(tokens[0], seen[0]).tolist() == tokens[0].tolist()


def test_a_word_that_a_mask_hides_is_in_its_row_and_slices_keep_their_lengths() -> None:
    rows = torch.tensor([[0, 5, 6, 7, 8, 0, 0, 0], [0] * 8])
    mask = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 0], [0] * 8])
    marked = mark_hidden(rows, mask)
    assert join_step_rows([marked.tolist()], Layout(((0,),)), 99) == [[5, 6, 7, 8], []]
    slices = [marked[:, :4].tolist(), marked[:, 4:].tolist()]
    assert join_step_rows(slices, Layout(((0, 1),), "contiguous"), 99) == [[5, 6, 7, 8], []]
