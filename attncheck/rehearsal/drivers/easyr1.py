"""Updates the actor of EasyR1, or of a fork of it, with synthetic rollouts: its own class.

Sources: EasyR1 b44b311 workers/fsdp_workers.py (`_build_model_optimizer`: float32 weights, flash_attention_2, Ulysses'
patch of attention; `update_actor`), workers/actor/dp_actor.py and config.py. Its workers are verl's: see `verl_actor`.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
from attncheck_drivers import verl_actor  # type: ignore[import-not-found]
from transformers import AutoConfig

PATCH = "apply_ulysses_patch"  # of models/monkey_patch.py, which a padding-free actor uses with one rank too


def main(configuration: str) -> None:
    """Run the training steps of a configuration that EasyR1 has composed."""
    with open(configuration, "rb") as stream:
        config: Any = pickle.load(stream)  # written by the process that started this one
    ranks = verl_actor.start_ranks()
    actor, data = config.worker.actor, config.data
    path = actor.model.model_path
    rows = data.rollout_batch_size * config.worker.rollout.n // ranks
    actor.global_batch_size_per_device = rows  # the worker sets it
    actor.use_kl_loss = actor.use_torch_compile = False
    if actor.padding_free:
        getattr(importlib.import_module("verl.models.monkey_patch"), PATCH)(AutoConfig.from_pretrained(path).model_type)
    policy = verl_actor.DataParallelPPOActor(actor, *make_model(actor))
    policy._forward_micro_batch = compute_in(actor.fsdp.mp_param_dtype, policy._forward_micro_batch)
    meta = {"temperature": config.worker.rollout.temperature}
    sizes = data.max_prompt_length, data.max_response_length, verl_actor.count_axes(path)
    verl_actor.train(policy, path, rows, lambda own, old: verl_actor.make_batch(own, *sizes, meta, old))


def make_model(actor: Any) -> tuple[Any, Any]:
    """Return the model and the optimiser that the worker makes."""
    own, lora, optim = actor.model, getattr(actor.model, "lora", None), actor.optim
    adapter = {}
    if lora is not None and lora.rank:
        targets = lora.target_modules
        names = targets if targets == "all-linear" else [name.strip() for name in targets.split(",") if name.strip()]
        adapter = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": names}
        adapter["exclude_modules"] = lora.exclude_modules
    attention, checkpoints = verl_actor.read_attention(), own.enable_gradient_checkpointing
    model = verl_actor.make_model(own.model_path, attention, checkpoints, adapter)
    for tower in ("visual", "vision_tower") if getattr(own, "freeze_vision_tower", False) else ():
        for module in (module for name, module in model.named_modules() if name.rpartition(".")[2] == tower):
            module.requires_grad_(False)
    for parameter in model.parameters() if adapter else ():
        if not parameter.requires_grad:
            parameter.data = parameter.to(torch.bfloat16)
    return model, verl_actor.make_optimizer(model, optim.lr, optim.betas, optim.weight_decay)


def compute_in(dtype: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass with autocast in the dtype that FSDP's mixed precision computes in."""
    kind = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16, "float16": torch.float16}
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def call(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device, kind.get(dtype, torch.bfloat16), enabled=dtype in kind):
            return forward(*arguments, **options)

    return call


if __name__ == "__main__":
    main(sys.argv[1])
