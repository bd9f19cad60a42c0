"""Updates OpenRLHF's actor with synthetic rollouts: its own model actor, replay buffer and trainer, without Ray.

Sources, openrlhf 0.11.2: cli/train_ppo_ray.py (`train`), trainer/ray/ppo_actor.py (`PolicyModelActor`: `forward`,
`append`, `fit`), trainer/ppo_utils/samples_generator.py:253 (a rollout: its tokens and, for each token after the first,
whether it is an action), trainer/ppo_utils/experience_maker.py:68 (batches are padded on the right),
trainer/ppo_trainer.py (advantages are those of actions). ray 2.x: a remote class keeps its original class.

The actor is `ActorModelRayActor` up to 0.8.0. Up to 0.7.0 its `fit` makes the trainer, whose `fit` has the loop; up to
0.7.5 prompts are padded on the left and responses on the right, and `action_mask` covers responses only; up to 0.6.4
the model takes numbers of actions, and packed rows are lists (0.6.4 trainer/ppo_utils/experience_maker.py:857).
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attncheck_drivers.rollouts import (  # type: ignore[import-not-found]
    Rollout,
    RolloutRecord,
    count_steps,
    iter_steps,
    lay_padded,
)
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils import replay_buffer
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils import get_strategy
from transformers import AutoTokenizer

TAKES_COUNTS = "num_actions" in inspect.signature(Actor.forward).parameters
PADS_LEFT = "left_pad" in inspect.getsource(replay_buffer)
pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)


def main(configuration: str) -> None:
    """Run the training steps of a launch, with options that OpenRLHF has parsed."""
    with open(configuration, "rb") as stream:
        args = pickle.load(stream)  # written by the process that started this one
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not torch.cuda.is_available():
        make_replay_buffers_without_cuda()
    steps, model = count_steps(), read_option(args, "actor.model_name_or_path", "pretrain")
    remote_class = getattr(ppo_actor, "PolicyModelActor", None) or ppo_actor.ActorModelRayActor
    actor_class = remote_class.__ray_metadata__.modified_class
    place: dict[str, Any] = {"world_size": world_size, "rank": rank, "local_rank": int(os.environ["LOCAL_RANK"])}
    place |= {"master_addr": os.environ["MASTER_ADDR"], "master_port": os.environ["MASTER_PORT"]}
    actor = actor_class(*[place[name] for name in inspect.signature(actor_class).parameters if name in place])
    rows = read_option(args, "rollout.batch_size", "rollout_batch_size")
    rows *= read_option(args, "rollout.n_samples_per_prompt", "n_samples_per_prompt")
    size = read_option(args, "rollout.micro_batch_size", "micro_rollout_batch_size")
    ring = read_option(args, "ds.ring_attn_size", "ring_attn_size")  # ranks that share rows
    ranks = world_size // ring
    are_lists = TAKES_COUNTS and getattr(args, "packing_samples", False)

    def train(append: Callable[[Any], None], update: Callable[[], object]) -> None:
        tokenizer, record = AutoTokenizer.from_pretrained(model), RolloutRecord(rank)
        for rollouts in iter_steps(rows // ranks, rank // ring, ranks, tokenizer):
            values = []
            for place in range(0, len(rollouts), size):
                batch = make_experience(rollouts[place : place + size], are_lists)
                add_image_inputs(actor, batch)
                batch.action_log_probs = compute_log_probabilities(actor, batch)
                masks = [slice(None)] * size if are_lists else batch.action_mask.bool()
                values += [row[mask].tolist() for row, mask in zip(batch.action_log_probs, masks)]
                append(batch)
            record.add_step(rollouts, values)
            update()

    if "max_steps" in inspect.signature(actor.init_model_from_pretrained).parameters:
        actor.init_model_from_pretrained(get_strategy(args), model, steps, None)
        train(actor.append, actor.fit)
        return
    loaders = dict.fromkeys(("prompts_dataloader", "pretrain_dataloader", "eval_dataloader"))
    actor.prepare_datasets = lambda: vars(actor).update(prompts_dataset=range(rows * steps), **loaders)
    actor.init_model_from_pretrained(get_strategy(args), model)

    def fit(trainer: Any, *arguments: Any) -> None:
        def update() -> None:
            trainer.ppo_train(1)
            trainer.replay_buffer.clear()

        vars(trainer).update(loaders)
        train(trainer.replay_buffer.append, update)

    ppo_actor.ActorPPOTrainer.fit = fit
    needed = [own for own in inspect.signature(actor.fit).parameters.values() if own.default is own.empty]
    actor.fit(*[None] * len(needed))  # the other models


def read_option(args: Any, dotted: str, flat: str) -> Any:
    """Return an option under its name since 0.10.2, or before; 1 if the release does not have it."""
    return functools.reduce(getattr, dotted.split("."), args) if hasattr(args, "actor") else getattr(args, flat, 1)


def make_experience(rollouts: Sequence[Rollout], are_lists: bool) -> Any:
    """Return rollouts as one batch, padded with the token 0 or as lists: an Experience of this release."""
    rows = [torch.tensor((*rollout.prompt, *rollout.response)) for rollout in rollouts]
    if are_lists:
        tensors: dict[str, Any] = {"sequences": rows, "attention_mask": None, "action_mask": None}
        tensors["advantages"] = [torch.full((len(own.response),), own.advantage) for own in rollouts]
    elif PADS_LEFT:
        tensors = dict(zip(("sequences", "attention_mask", "action_mask"), lay_padded(rollouts)))
    else:
        masks = [torch.arange(1, len(row)) >= len(rollout.prompt) for row, rollout in zip(rows, rollouts)]
        tensors = {"sequences": pad(rows), "attention_mask": pad([torch.ones_like(row) for row in rows])}
        tensors["action_mask"] = pad([mask.long() for mask in masks])
    if not are_lists:
        advantages = torch.tensor([rollout.advantage for rollout in rollouts])
        tensors["advantages"] = advantages[:, None] * tensors["action_mask"]
    tensors["returns"] = tensors["values"] = tensors["advantages"]  # only the critic uses them
    lengths = torch.tensor([[float(len(row)), float(len(own.response))] for row, own in zip(rows, rollouts)])
    sizes = {"total_length": lengths[:, 0], "response_length": lengths[:, 1]}
    zeros = torch.zeros(len(rollouts))
    known = inspect.signature(ppo_actor.Experience).parameters
    # Forks mask tokens that a tool wrote, of which synthetic rollouts have none (RUCAIBox/R1-Searcher 631167c).
    written = [torch.ones_like(row).long() for row in tensors["advantages"]] if are_lists else tensors["action_mask"]
    tensors |= {name: written for name in known if name.endswith("mask") and name not in tensors}
    needed = {name: None for name, parameter in known.items() if parameter.default is parameter.empty}
    tensors |= {**sizes, "info": {**sizes, **dict.fromkeys(("kl", "reward", "return"), zeros)}}
    return ppo_actor.Experience(**needed | {name: value for name, value in tensors.items() if name in known})


def add_image_inputs(actor: Any, batch: Any) -> None:
    """Give a batch without images the inputs that a fork keeps next to its tokens: its processor makes empty ones.

    TideDra/lmm-r1 f917f18 models/lmm_kits/base/data_processor.py (`MMInputs`); replay_buffer.py replaces their tokens.
    """
    if not isinstance(getattr(batch, "visual_inputs", {}), dict):
        prompt = json.dumps([{"role": "user", "content": ""}])
        batch.visual_inputs = actor.data_processor([prompt] * len(batch.sequences), 1, device="cpu")


def compute_log_probabilities(actor: Any, batch: Any) -> Any:
    """Return the actor's log-probabilities of a batch's actions, as the trainer computes them before the update."""
    if hasattr(actor, "forward"):
        names = [name for name in inspect.signature(actor.forward).parameters if hasattr(batch, name)]
        return actor.forward(**{name: getattr(batch, name) for name in names})
    device = torch.cuda.current_device()
    actor.actor.eval()
    with torch.no_grad():
        if isinstance(batch.sequences, list):
            counts, lengths = ([len(row) for row in rows] for rows in (batch.advantages, batch.sequences))
            numbers = torch.cat([torch.full_like(row, number + 1) for number, row in enumerate(batch.sequences)])
            inputs = torch.cat(batch.sequences)[None].to(device), counts, numbers[None].to(device)
            values = actor.actor(*inputs, packed_seq_lens=lengths)[0].split(counts)
        else:
            actions = batch.action_mask.size(1) if TAKES_COUNTS else batch.action_mask.to(device)
            values = actor.actor(batch.sequences.to(device), actions, batch.attention_mask.to(device)).cpu()
    actor.actor.train()
    return [row.cpu() for row in values] if isinstance(values, tuple) else values


def make_replay_buffers_without_cuda() -> None:
    """Set a replay buffer's device attribute, which sampling would set and training does not."""
    original = replay_buffer.NaiveReplayBuffer.__init__

    def make(*arguments: Any, **options: Any) -> None:
        current_device = torch.cuda.current_device
        torch.cuda.current_device = lambda: 0
        try:
            original(*arguments, **options)
        finally:
            torch.cuda.current_device = current_device

    replay_buffer.NaiveReplayBuffer.__init__ = make


if __name__ == "__main__":
    main(sys.argv[1])
