"""Updates verl's actor with synthetic rollouts: verl's own worker, engine and loss, called as its trainer does.

Sources, verl 0.9.1: workers/engine_workers.py (`ActorRolloutRefWorker` with the role "actor" makes the training engine
and no rollout); trainer/ppo/v1/trainer_base.py (`_compute_old_log_prob`, `_update_actor`: the contents of a batch) and
v1/agent_loop_tq.py (`_agent_loop_postprocess`: rollouts without padding). If `trainer.use_v1` is off or unknown,
trainer/ppo/ray_trainer.py (the same methods) and experimental/agent_loop/agent_loop.py, as in forks before 0.8.0:
prompts are padded on the left and responses on the right, to `rollout.prompt_length` and `rollout.response_length`. A
batch is distributed to the data-parallel ranks in equal parts (single_controller/base/decorator.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from attncheck_drivers.rollouts import (  # type: ignore[import-not-found]
    Rollout,
    RolloutRecord,
    iter_steps,
    lay_padded,
)
from omegaconf import OmegaConf
from torch import Tensor
from transformers import AutoTokenizer
from verl.utils import tensordict_utils
from verl.utils.distributed import initialize_global_process_group
from verl.utils.model import compute_position_id_with_mask
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils import padding


def main(configuration: str) -> None:
    """Run the training steps of a configuration that verl has composed."""
    config: Any = OmegaConf.load(configuration)
    initialize_global_process_group()  # as in verl's SFT; a worker uses an existing process group
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    engine = worker.actor.engine
    rank, ranks = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    share = config.data.train_batch_size * config.actor_rollout_ref.rollout.n // ranks
    record = RolloutRecord(torch.distributed.get_rank())
    for rollouts in iter_steps(share, rank, ranks, tokenizer):
        old = compute_old_log_probabilities(config, worker, rollouts)
        record.add_step(rollouts, [values.tolist() for values in old])
        update_actor(config, worker, rollouts, old)


def compute_old_log_probabilities(config: Any, worker: Any, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """Return the log-probabilities of each response, (tokens,), from the worker's own `compute_log_prob`.

    Only one of the ranks that share rows has them (workers/engine/fsdp/transformer_impl.py:200). The trainer passes
    them to all; here they are passed to the others of the group.
    """
    batch = make_batch(config, rollouts)
    tensordict_utils.assign_non_tensor(batch, calculate_entropy=True, compute_loss=False)
    output = worker.compute_log_prob(batch)
    parcel = [None if output is None else read_log_probabilities(config, output, batch)]
    group = worker.actor.engine.ulysses_parallel_group
    if group is not None:
        torch.distributed.broadcast_object_list(parcel, src=torch.distributed.get_global_rank(group, 0), group=group)
    assert parcel[0] is not None
    return [row[: len(rollout.response)].float() for row, rollout in zip(parcel[0], rollouts)]


def read_log_probabilities(config: Any, output: Any, batch: Any) -> list[Tensor]:
    """Return the rows of a worker's output, the log-probabilities of each response first."""
    values = tensordict_utils.get(output, "log_probs")
    if config.trainer.get("use_v1"):
        return [row.clone() for row in padding.response_from_nested(values, batch["response_mask"]).unbind()]
    return [row.clone() for row in padding.no_padding_2_padding(values, batch).unbind()]


def update_actor(config: Any, worker: Any, rollouts: Sequence[Rollout], old: Sequence[Tensor]) -> None:
    """Take a step with these rollouts through the worker's own `update_actor`."""
    actor = config.actor_rollout_ref.actor
    size = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    advantages = [torch.full((len(rollout.response),), rollout.advantage) for rollout in rollouts]
    batch = make_batch(config, rollouts)
    batch["old_log_probs"], batch["advantages"] = lay_responses(config, old), lay_responses(config, advantages)
    tensordict_utils.assign_non_tensor(
        batch,
        calculate_entropy=actor.get("calculate_entropy") or actor.entropy_coeff != 0.0,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=size,
        mini_batch_size=size,
        epochs=actor.ppo_epochs,
        seed=actor.get("data_loader_seed"),
        dataloader_kwargs={"shuffle": actor.shuffle},
        compute_loss=True,
    )
    worker.update_actor(batch)


def make_batch(config: Any, rollouts: Sequence[Rollout]) -> Any:
    """Return rollouts in the worker's format, one per row: a TensorDict."""
    prompts = [torch.tensor(rollout.prompt) for rollout in rollouts]
    responses = [torch.tensor(rollout.response) for rollout in rollouts]
    masks = [torch.ones_like(response) for response in responses]
    tensors = {"responses": lay_responses(config, responses), "response_mask": lay_responses(config, masks)}
    if config.trainer.get("use_v1"):
        rows = [torch.cat(parts) for parts in zip(prompts, responses)]
        tensors |= {
            "prompts": tensordict_utils.nested_tensor_from_tensor_list(prompts),
            "loss_mask": tensors["response_mask"],
            "input_ids": tensordict_utils.nested_tensor_from_tensor_list(rows),
            "position_ids": tensordict_utils.nested_tensor_from_tensor_list(
                [compute_position_id_with_mask(torch.ones_like(row)) for row in rows]
            ),
        }
    else:
        width = config.actor_rollout_ref.rollout.prompt_length
        tokens, seen, _ = lay_padded(rollouts, width, config.actor_rollout_ref.rollout.response_length)
        tensors |= {"prompts": tokens[:, :width], "input_ids": tokens, "attention_mask": seen}
        tensors["position_ids"] = compute_position_id_with_mask(tensors["attention_mask"])
    batch = tensordict_utils.get_tensordict(tensors, {"temperature": config.actor_rollout_ref.rollout.temperature})
    return batch if config.trainer.get("use_v1") else padding.left_right_2_no_padding(batch)


def lay_responses(config: Any, rows: Sequence[Tensor]) -> Tensor:
    """Return per-token values of each response: nested, or padded to (rows, response_length)."""
    if config.trainer.get("use_v1"):
        nested: Tensor = tensordict_utils.nested_tensor_from_tensor_list(list(rows))
        return nested
    length = config.actor_rollout_ref.rollout.response_length
    return torch.stack([torch.nn.functional.pad(row, (0, length - len(row))) for row in rows])


if __name__ == "__main__":
    main(sys.argv[1])
