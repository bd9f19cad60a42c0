"""verl's loss under Ulysses: releases that scale it by the ranks, or weight it by micro-batch."""

from __future__ import annotations

import pytest

from tests.lint.frameworks.test_verl import ACTOR, OLD_SFT, ULYSSES_SIZE, VALID, find_problems, write_settings

BASE = f"{OLD_SFT} data.train_batch_size=64 data.micro_batch_size_per_gpu=4 use_remove_padding=True"
BALANCED = f"{BASE} {ULYSSES_SIZE}=2 data.balance_dp_token=True"


@pytest.mark.parametrize("version", ["0.3.0.post1", "0.5.0", "0.7.0"])
def test_balanced_tokens_are_counted_on_every_rank_of_a_row(version: str) -> None:
    # On two gloo ranks with the Gather of verl 0.5.0 (utils/ulysses.py) and the trainer's formula: loss and gradient of
    # size 2 are half of those of size 1 with balance_dp_token=True, and the same with False.
    divided = [problem for problem in find_problems(BALANCED, version) if "2 times too small" in problem.message]
    assert [dict(problem.sets) for problem in divided] == [{"data.balance_dp_token": "False"}]
    corrected = write_settings(BALANCED, version, {"data.balance_dp_token": "False"})
    assert "2 times too small" not in str(find_problems(corrected, version))


def test_one_rank_a_row_is_scaled_right() -> None:
    assert "too small" not in str(find_problems(BALANCED.replace("size=2", "size=1"), "0.5.0"))


@pytest.mark.parametrize(
    ("text", "version", "is_weighted"),
    [
        (f"{BASE} {ULYSSES_SIZE}=2", "0.5.0", True),
        (BASE, "0.5.0", False),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", "0.5.0", True),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2 {ACTOR}.loss_agg_mode=seq-mean-token-mean", "0.5.0", False),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", "0.9.1", False),
        (VALID, "0.5.0", False),
    ],
)
def test_the_mean_of_micro_batches_depends_on_the_ranks(text: str, version: str, is_weighted: bool) -> None:
    weighted = [problem for problem in find_problems(text, version) if "micro-batches' means" in problem.message]
    assert bool(weighted) is is_weighted
    assert all(problem.mild and problem.advice for problem in weighted)
