"""Scores that rise for rejected answers or fall for chosen ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.worker.checks.loss import _find_reversed_scores, _find_wrong_groups
from attncheck.rehearsal.worker.rollouts import list_group_advantages


@pytest.mark.parametrize(
    ("slopes", "wrong", "count"),
    [
        ((-1.0, 1.0, -1.0, 1.0), 0, 4),  # a step raises what has a negative slope
        ((1.0, -1.0, 1.0, -1.0), 4, 4),
        ((1.0, -1.0, -1.0, 1.0), 2, 4),
        ((-1.0, 1.0, -1.0, -1.0), 0, 4),  # by a term that keeps scores small
        ((1.0, -1.0, 0.0, 0.0), 2, 2),  # the second pair's margin is wide enough
    ],
)
def test_scores_of_the_wrong_direction(slopes: tuple[float, ...], wrong: int, count: int) -> None:
    ids = torch.zeros(4, 3, dtype=torch.long)
    pull = torch.zeros(4, 3, 1)
    pull[:, 2, 0] = torch.tensor(slopes)
    call = SimpleNamespace(pull=pull, input_ids=ids)
    pieces = [
        SimpleNamespace(call=call, row=row, segment=SimpleNamespace(document=row, start=0, stop=3)) for row in range(4)
    ]
    documents = [("one", "a"), ("one", "b"), ("two", "c"), ("two", "d")]
    rank = SimpleNamespace(weights={"score.weight": torch.ones(1, 1)})
    step = SimpleNamespace(ranks=[rank], index=SimpleNamespace(documents=documents))
    evidence: Any = SimpleNamespace(step=step, judged_pieces=pieces)
    text = _find_reversed_scores(evidence)
    assert text.endswith(f"in {wrong} of {count} answers") if wrong else not text


@pytest.mark.parametrize(
    ("advantages", "text"),
    [
        ({0: 1.0, 1: -1.0, 2: 0.5, 3: -0.5}, ""),
        ({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}, "2 of 2 prompts give"),  # normalised over other prompts' responses
        ({0: 1.0, 1: -1.0, 2: -1.0, 3: 1.0}, "1 of 2 prompts give"),  # those of other responses
        ({0: 1.0, 2: 1.0, 4: 1.0}, "no prompt of the step has two responses"),
        ({0: 1.0, 3: -1.0, 5: -1.0}, ""),  # the script chooses some of each group
        ({0: 1.0, 2: 1.0}, ""),  # of which more may come in another step
    ],
)
def test_advantages_are_those_of_a_prompts_own_group(advantages: dict[int, float], text: str) -> None:
    documents = [(f"question {number // 2}", f"answer {number}") for number in range(6)]
    rollouts = [[SimpleNamespace(document=number, advantage=value) for number, value in advantages.items()]]
    step = SimpleNamespace(index=SimpleNamespace(documents=documents))
    evidence: Any = SimpleNamespace(step=step, rollouts=rollouts, replaces_rewards=True, taken=[])
    faults = list(_find_wrong_groups(evidence, list_group_advantages(evidence)))
    assert len(faults) == bool(text) and all(fault.startswith(text) for fault in faults)


@pytest.mark.parametrize(
    ("advantages", "scaling", "count"),
    [
        ((0.5, -0.5), ["True"], 1),  # not divided by the standard deviation
        ((0.707, -0.707), ["none"], 1),
        ((0.707, -0.707), ["group"], 0),
        ((0.5, -0.5), ["batch"], 0),  # which rewards of other prompts decide
        ((0.5, -0.5), [], 0),  # a script's own trainer
    ],
)
def test_advantages_are_scaled_as_documented(advantages: tuple[float, float], scaling: list[str], count: int) -> None:
    documents = [("question", "one"), ("question", "other")]
    rollouts = [[SimpleNamespace(document=number, advantage=value) for number, value in enumerate(advantages)]]
    step = SimpleNamespace(index=SimpleNamespace(documents=documents))
    taken = [SimpleNamespace(code={"scaling": scaling})]
    evidence: Any = SimpleNamespace(step=step, rollouts=rollouts, replaces_rewards=True, taken=taken)
    assert len([*_find_wrong_groups(evidence, list_group_advantages(evidence))]) == count
