"""Updates the actor of a verl before 0.8, or of a fork of one, with synthetic rollouts: its own class.

Sources: workers/fsdp_workers.py of verl 0.1, 0.2, 0.3.1, 0.4.0, 0.5.0 and 0.7.1 (`_build_model_optimizer`: float32
weights, flash_attention_2, classes of images, LoRA of the base model, AdamW; `update_actor`), workers/actor/dp_actor.py
(`DataParallelPPOActor(config, module, optimizer)`, `compute_log_prob`, `update_policy`), protocol.py (`DataProto`),
utils/dataset/rl_dataset.py (the positions of a model with several rotary axes, which its patched attention reads).
Prompts are padded on the left and responses on the right. The worker itself, which shards the model by FSDP and
registers itself with Ray, is not run: DistributedDataParallel averages gradients across ranks, as FSDP does.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attncheck_drivers.models import make_model, make_optimizer  # type: ignore[import-not-found]
from attncheck_drivers.rollouts import (  # type: ignore[import-not-found]
    Rollout,
    RolloutRecord,
    iter_steps,
    lay_padded,
    name_absent_value,
)
from attncheck_drivers.trainer_values import make_values  # type: ignore[import-not-found]
from omegaconf import OmegaConf
from tensordict import TensorDict  # type: ignore[import-not-found]
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer
from verl.protocol import DataProto
from verl.workers.actor.dp_actor import DataParallelPPOActor

# Masks of the response that forks read: of the tokens that the model itself wrote, if it uses tools.
MASK = re.compile(r"""["'](\w*masks?)["']""")
ATTENTION = "flash_attention_2"  # of the workers, unless their code or `override_config` names another
FIXED_ATTENTION = re.compile(r"""\battn_implementation=["'](\w+)["']""")
PACKAGE = Path(inspect.getfile(DataProto)).parent


def main(configuration: str) -> None:
    """Run the training steps of a configuration that the launch's own program has composed."""
    config: Any = OmegaConf.load(configuration)
    sizes = json.loads(os.environ["ATTNCHECK_OVERRIDES"])  # the tree may lack some of these names
    known = [name for name in sizes if OmegaConf.select(config, name, default=sizes) is not sizes]
    config.merge_with_dotlist([f"{name}={sizes[name]}" for name in known])
    ranks = start_ranks()
    role = config.actor_rollout_ref
    actor = role.actor
    micro_batch = "ppo_micro_batch_size" + ("_per_gpu" if "ppo_micro_batch_size_per_gpu" in actor else "")
    actor[micro_batch] = int(sizes["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"])
    rows = int(sizes["data.train_batch_size"]) * int(sizes["actor_rollout_ref.rollout.n"]) // ranks
    actor.ppo_mini_batch_size = rows  # the worker multiplies it by rollout.n and divides it by the ranks
    meta = {
        "temperature": role.rollout.temperature,
        "micro_batch_size": actor.get("ppo_micro_batch_size_per_gpu") or actor.ppo_micro_batch_size,
        "use_dynamic_bsz": bool(actor.get("use_dynamic_bsz")),
        "max_token_len": actor.get("ppo_max_token_len_per_gpu"),
    }
    meta |= make_values(inspect.getsource(DataParallelPPOActor), config, meta)
    sizes = config.data.max_prompt_length, config.data.max_response_length, count_axes(role.model.path)
    train(make_actor(role), role.model.path, rows, lambda own, old: make_batch(own, *sizes, meta, old))


def start_ranks() -> int:
    """Join the ranks, and return their number; without a GPU, batches stay where they are."""
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(torch.distributed.get_rank())
    else:  # batches go to torch.cuda.current_device(), by its number or as "cuda"
        TensorDict.to = TensorDict.cuda = lambda batch, *arguments, **options: batch
    return torch.distributed.get_world_size()


def train(policy: Any, model: str, rows: int, lay: Callable[[Sequence[Rollout], Tensor | None], Any]) -> None:
    """Take the steps, each with `rows` rollouts of this rank; `lay` returns them as a batch."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    record = RolloutRecord(rank)
    for rollouts in iter_steps(rows, rank, ranks, AutoTokenizer.from_pretrained(model)):
        with name_absent_value():
            old = policy.compute_log_prob(lay(rollouts, None))
            old = old["log_probs"] if isinstance(old, dict) else old[0] if isinstance(old, tuple) else old
            record.add_step(rollouts, [row[: len(own.response)].tolist() for row, own in zip(old.float(), rollouts)])
            policy.update_policy(lay(rollouts, old.cpu()))


def make_actor(role: Any) -> Any:
    """Return the tree's own actor with the model and the optimiser that its worker makes."""
    own, optim = role.model, role.actor.optim
    lora = {"r": own.get("lora_rank"), "lora_alpha": own.get("lora_alpha"), "bias": "none"}
    targets = own.get("target_modules")
    lora["target_modules"] = targets if isinstance(targets, str) else list(targets or ())
    model = make_model(
        own.path,
        (own.get("override_config") or {}).get("attn_implementation") or read_attention(),
        bool(own.get("enable_gradient_checkpointing")),
        lora if own.get("lora_rank") else {},
    )
    optimizer = make_optimizer(model, optim.lr, optim.get("betas"), optim.get("weight_decay", 1e-2))
    if own.get("use_remove_padding") and count_axes(own.path):
        patch_attention(model)
    config: Any = role.actor
    OmegaConf.update(config, "use_remove_padding", bool(own.get("use_remove_padding")), force_add=True)
    if "_target_" in config:  # since 0.6: a dataclass
        config = importlib.import_module("verl.utils.config").omega_conf_to_dataclass(config)
    return DataParallelPPOActor(config, model, optimizer)


def read_attention() -> str:
    """Return the attention that the worker's code fixes."""
    workers = (PACKAGE / "workers").glob("fsdp_workers.py")
    fixed = FIXED_ATTENTION.search("".join(own.read_text(encoding="utf-8") for own in workers))
    return fixed[1] if fixed is not None else ATTENTION


def patch_attention(model: Any) -> None:
    """Patch a model as the worker does, without which packed rows of several rotary axes attend to each other."""
    patch = importlib.import_module("verl.models.transformers.monkey_patch").apply_monkey_patch
    options = {"model": model, "config": model.config, "use_remove_padding": True}
    patch(**{name: value for name, value in options.items() if name in inspect.signature(patch).parameters})


def count_axes(path: str) -> int:
    """Return a token's number of positions: 0 if a number is enough, otherwise as the data set makes them for text.

    Images have three, and since verl 0.6 the position in the text comes before them.
    """
    config = AutoConfig.from_pretrained(path).get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    sources = (own.read_text(encoding="utf-8") for own in (PACKAGE / "utils").rglob("*dataset*.py"))
    return 3 + any("text_position_ids" in text for text in sources) if "mrope_section" in rope else 0


def make_batch(
    rollouts: Sequence[Rollout], width: int, length: int, axes: int, meta: Mapping[str, Any], old: Tensor | None
) -> Any:
    """Return rollouts as the trainer does: a DataProto, with what the update needs if `old` is given."""
    tokens, attention_mask, mask = lay_padded(rollouts, width, length)
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    tensors = {
        "responses": tokens[:, width:],
        "input_ids": tokens,
        "position_ids": positions[:, None].repeat(1, axes, 1) if axes else positions,
        **dict.fromkeys(MASK.findall(inspect.getsource(DataParallelPPOActor)), mask),
        "attention_mask": attention_mask,
    }
    if old is not None:
        tensors |= {"old_log_probs": old, "advantages": torch.tensor([[own.advantage] for own in rollouts]) * mask}
    return DataProto.from_dict(tensors, meta_info=dict(meta))


if __name__ == "__main__":
    main(sys.argv[1])
