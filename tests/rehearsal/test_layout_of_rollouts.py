"""Rollouts as the trainers lay them, and the rows that the watcher keeps: padding is the token 0, which is a word."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from attncheck.rehearsal.drivers import rollouts
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


FIELDS = ("sequences", "attention_mask", "action_mask", "retrieve_mask", "advantages", "info", "kl")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the driver of an OpenRLHF whose rollouts have these fields."""
    names = ["openrlhf", "openrlhf.models", "openrlhf.trainer", "openrlhf.trainer.ppo_utils", "openrlhf.utils"]
    names += ["openrlhf.trainer.ray", "attncheck_drivers"]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "attncheck_drivers.rollouts", rollouts)
    modules["openrlhf.models"].Actor = torch.nn.Module
    modules["openrlhf.utils"].get_strategy = None
    modules["openrlhf.trainer.ppo_utils"].replay_buffer = rollouts
    experience = dataclasses.make_dataclass("Experience", FIELDS)
    modules["openrlhf.trainer.ray"].ppo_actor = ModuleType("ppo_actor")
    vars(modules["openrlhf.trainer.ray"].ppo_actor)["Experience"] = experience
    monkeypatch.delitem(sys.modules, "attncheck.rehearsal.drivers.openrlhf", raising=False)
    yield importlib.import_module("attncheck.rehearsal.drivers.openrlhf")
    monkeypatch.delitem(sys.modules, "attncheck.rehearsal.drivers.openrlhf")


@pytest.mark.parametrize("are_lists", [True, False])
def test_a_forks_mask_of_retrieved_tokens_hides_none(are_lists: bool, driver: Any) -> None:
    """Its packed update joins the masks of the rows; a field that is no mask stays empty."""
    made = driver.make_experience(ROLLOUTS, are_lists)
    assert made.kl is None
    if are_lists:
        assert torch.cat(made.retrieve_mask).tolist() == [1] * 5 and made.action_mask is None
    else:
        assert made.retrieve_mask.equal(made.action_mask)


class ImageActor:
    """As the actor of a fork that trains models of images."""

    def data_processor(self, prompts: list[str], max_length: int, device: str) -> list[str]:
        """Return one input for each prompt."""
        return prompts

    def forward(
        self, sequences: Any, action_mask: Any = None, attention_mask: Any = None, visual_inputs: Any = None
    ) -> tuple[Any, ...]:
        """Return the arguments."""
        return sequences, action_mask, attention_mask, visual_inputs


def test_a_fork_for_images_gets_its_inputs_of_rollouts_without_images(driver: Any) -> None:
    actor, batch = ImageActor(), driver.make_experience(ROLLOUTS, False)
    driver.add_image_inputs(actor, batch)
    assert driver.compute_log_probabilities(actor, batch)[1:] == (batch.action_mask, batch.attention_mask, None)
    batch.visual_inputs = {}  # of an older fork, which fills the dictionary itself
    driver.add_image_inputs(actor, batch)
    assert driver.compute_log_probabilities(actor, batch)[3] == {}
    batch.visual_inputs = ROLLOUTS  # of a class
    driver.add_image_inputs(actor, batch)
    (prompt, _) = driver.compute_log_probabilities(actor, batch)[3]
    assert json.loads(prompt) == [{"role": "user", "content": ""}]
