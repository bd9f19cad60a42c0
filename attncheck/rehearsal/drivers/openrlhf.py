"""Updates OpenRLHF's actor with synthetic rollouts: its own model actor, replay buffer and trainer, without Ray.

Sources, openrlhf 0.11.2: cli/train_ppo_ray.py (`train`), trainer/ray/ppo_actor.py (`PolicyModelActor`: `forward`,
`append`, `fit`), trainer/ppo_utils/samples_generator.py:253 (a rollout: its tokens and, for each token after the first,
whether it is an action), trainer/ppo_utils/experience_maker.py:68 (batches are padded on the right),
trainer/ppo_trainer.py (advantages are those of actions). ray 2.x: a remote class keeps its original class.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import torch
from attncheck_drivers.rollouts import (  # type: ignore[import-not-found]
    Rollout,
    RolloutRecord,
    count_steps,
    iter_steps,
)
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.utils import get_strategy
from transformers import AutoTokenizer


def main(configuration: str) -> None:
    """Run the training steps of a launch, with options that OpenRLHF has parsed."""
    with open(configuration, "rb") as stream:
        args = pickle.load(stream)  # written by the process that started this one
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not torch.cuda.is_available():
        make_replay_buffers_without_cuda()
    steps, model = count_steps(), args.actor.model_name_or_path
    actor_class = PolicyModelActor.__ray_metadata__.modified_class
    actor = actor_class(world_size, rank, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    actor.init_model_from_pretrained(get_strategy(args), model, steps)
    tokenizer, record = AutoTokenizer.from_pretrained(model), RolloutRecord(rank)
    share = args.rollout.batch_size * args.rollout.n_samples_per_prompt // world_size
    for rollouts in iter_steps(share, rank, world_size, tokenizer):
        size = args.rollout.micro_batch_size
        batches = [make_experience(rollouts[place : place + size]) for place in range(0, share, size)]
        values = []
        for batch in batches:
            batch.action_log_probs = actor.forward(batch.sequences, batch.action_mask, batch.attention_mask)
            values += [row[mask].tolist() for row, mask in zip(batch.action_log_probs, batch.action_mask.bool())]
            actor.append(batch)
        record.add_step(rollouts, values)
        actor.fit()


def make_experience(rollouts: Sequence[Rollout]) -> Any:
    """Return rollouts as one batch, padded on the right with the token 0: an Experience."""
    rows = [torch.tensor((*rollout.prompt, *rollout.response)) for rollout in rollouts]
    masks = [torch.arange(1, len(row)) >= len(rollout.prompt) for row, rollout in zip(rows, rollouts)]
    pad = torch.nn.utils.rnn.pad_sequence
    actions = pad([mask.long() for mask in masks], batch_first=True)
    advantages = torch.tensor([rollout.advantage for rollout in rollouts])[:, None] * actions
    lengths = torch.tensor([float(len(row)) for row in rows])
    return Experience(
        sequences=pad(rows, batch_first=True),
        attention_mask=pad([torch.ones_like(row) for row in rows], batch_first=True),
        action_mask=actions,
        advantages=advantages,
        total_length=lengths,
        response_length=actions.sum(-1).float(),
    )


def make_replay_buffers_without_cuda() -> None:
    """Set a replay buffer's device attribute, which sampling would set and training does not."""
    original = NaiveReplayBuffer.__init__

    def make(*arguments: Any, **options: Any) -> None:
        current_device = torch.cuda.current_device
        torch.cuda.current_device = lambda: 0
        try:
            original(*arguments, **options)
        finally:
            torch.cuda.current_device = current_device

    NaiveReplayBuffer.__init__ = make


if __name__ == "__main__":
    main(sys.argv[1])
