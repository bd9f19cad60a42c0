"""Rollouts as the trainers lay them, and the rows that the watcher keeps: padding is the token 0, which is a word."""

from __future__ import annotations

import torch

from attncheck.rehearsal.drivers.rollouts import Rollout, lay_padded
from attncheck.rehearsal.watcher.batches import list_seen

ROLLOUTS = (Rollout(0, (5, 6, 7), (8, 9), 0.5), Rollout(1, (4,), (3, 2, 1), -1.0))


def test_prompts_are_padded_on_the_left_and_responses_on_the_right() -> None:
    tokens, seen, mask = lay_padded(ROLLOUTS)
    assert tokens.tolist() == [[5, 6, 7, 8, 9, 0], [0, 0, 4, 3, 2, 1]]
    assert seen.tolist() == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert lay_padded(ROLLOUTS, 4, 5)[0].tolist()[1] == [0, 0, 0, 4, 3, 2, 1, 0, 0]


def test_tokens_that_a_mask_hides_are_in_no_row() -> None:
    tokens, seen, _ = lay_padded(ROLLOUTS)
    rows = [[5, 6, 7, 8, 9], [4, 3, 2, 1]]
    assert list_seen(tokens, seen) == list_seen(tokens, seen.bool()) == rows
    packed = torch.tensor([[1, 1, 1, 2, 2, 0]])  # numbers of documents
    assert list_seen(tokens[:1], packed) == rows[:1]
    for mask in (None, seen[:, None, None], seen[0]):  # of another form
        assert list_seen(tokens, mask) == tokens.tolist()
    assert list_seen(tokens[0], seen[0]) == tokens[0].tolist()
