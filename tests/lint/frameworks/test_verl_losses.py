"""verl's loss under Ulysses: releases that sum it over micro-batches, or weight it by them."""

from __future__ import annotations

import pytest

from tests.lint.frameworks.test_verl import ACTOR, OLD_SFT, ULYSSES_SIZE, VALID, find_problems, write_settings

BASE = f"{OLD_SFT} data.train_batch_size=64 data.micro_batch_size_per_gpu=4 use_remove_padding=True"
BALANCED = f"{BASE} {ULYSSES_SIZE}=2 data.balance_dp_token=True"


@pytest.mark.parametrize("version", ["0.2.0.post2", "0.5.0", "0.7.0"])
def test_balanced_tokens_end_the_first_step_under_ulysses(version: str) -> None:
    """torch's DeviceMesh.size takes no name: rehearsed with verl 0.4.1 in tests/rehearsal/test_known_bugs.py."""
    refused = [problem for problem in find_problems(BALANCED, version) if problem.consequence == "refuses"]
    assert [dict(problem.sets) for problem in refused] == [{"data.balance_dp_token": "False"}]
    corrected = write_settings(BALANCED, version, {"data.balance_dp_token": "False"})
    assert "balance_dp_token" not in str(find_problems(corrected, version))


def test_balanced_tokens_are_taken_where_a_rank_has_its_rows_whole() -> None:
    assert "balance_dp_token" not in str(find_problems(BALANCED.replace("size=2", "size=1"), "0.5.0"))


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (BASE, "0.4.1", "2 micro-batches per step"),
        (f"{BASE} {ULYSSES_SIZE}=2", "0.2.0.post2", "4 micro-batches per step"),
        (f"{BASE} {ULYSSES_SIZE}=2".replace("node=8", "node=$GPUS"), "0.5.0", "grow with the number of ranks"),
        (BASE.replace("node=8", "node=$GPUS"), "0.5.0", ""),
        (BASE.replace("node=8", "node=16"), "0.5.0", ""),
        (f"{BASE} {ULYSSES_SIZE}=2", "0.6.0", ""),
    ],
)
def test_micro_batches_were_summed(text: str, version: str, message: str) -> None:
    """Up to 0.5.0 the mean is taken of what is logged, after it was differentiated."""
    summed = [problem for problem in find_problems(text, version) if "gradients are not divided" in problem.message]
    assert [message in problem.message for problem in summed] == ([True] if message else [])
    assert all(problem.mild and problem.advice for problem in summed)


@pytest.mark.parametrize(
    ("text", "version", "is_weighted"),
    [
        (f"{BASE} {ULYSSES_SIZE}=2", "0.6.1", True),
        (BASE, "0.6.1", False),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", "0.5.0", True),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2 {ACTOR}.loss_agg_mode=seq-mean-token-mean", "0.5.0", False),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2 {ACTOR}.policy_loss.loss_mode=gpg", "0.5.0", True),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2 {ACTOR}.policy_loss.loss_mode=geo_mean", "0.5.0", False),
        (f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", "0.9.1", False),
        (VALID, "0.5.0", False),
    ],
)
def test_the_mean_of_micro_batches_depends_on_the_ranks(text: str, version: str, is_weighted: bool) -> None:
    weighted = [
        problem for problem in find_problems(text, version) if "mean of the micro-batches' means" in problem.message
    ]
    assert bool(weighted) is is_weighted
    assert all(problem.mild and problem.advice for problem in weighted)


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (BASE, "0.6.0", "the end of each response is not learned"),
        (BASE, "0.7.0", "the end of each response is not learned"),
        (BASE, "0.5.0", ""),
        (f"{BASE} data.multiturn.enable=True", "0.6.0", ""),
        (f"{BASE} data.multiturn.enable=True", "0.5.0", "the first token of each answer is not learned"),
        (f"{BASE} data.multiturn.enable=True data.custom_cls.path=own.py", "0.5.0", ""),
        (f"{BASE} data.custom_cls.path=own.py", "0.6.0", ""),
    ],
)
def test_masks_were_shifted_twice_or_not_at_all(text: str, version: str, message: str) -> None:
    """Rehearsed with verl 0.4.1 and 0.6.0 in tests/rehearsal/test_known_bugs.py."""
    moved = [problem for problem in find_problems(text, version) if "loss mask is off" in problem.message]
    assert [message in problem.message for problem in moved] == ([True] if message else [])
    assert all(problem.consequence == "wrong" and not problem.mild for problem in moved)


@pytest.mark.parametrize(
    ("temperature", "version", "count"),
    [
        ("0", "0.2.0.post2", 1),
        ("0.0", "0.7.1", 1),
        ("0.6", "0.7.1", 0),
        ("0", "0.8.0", 0),
        ("0 trainer.val_only=True", "0.7.1", 0),
    ],
)
def test_logits_are_divided_by_the_temperature(temperature: str, version: str, count: int) -> None:
    problems = find_problems(f"{VALID} actor_rollout_ref.rollout.temperature={temperature}", version)
    assert [problem.consequence for problem in problems if "temperature" in problem.message] == ["wrong"] * count
