"""Computes slime's loss of synthetic rollouts and takes its gradients: its own options and loss, without Megatron.

Sources, slime v0.2.2, v0.3.0 and v0.3.1: utils/arguments.py (`get_slime_extra_args_provider`),
backends/megatron_utils/loss.py (`loss_function`, which the step's number of samples enters since v0.3.0;
`get_log_probs_and_entropy`), data.py (a batch's names). Megatron divides a loss by the micro-batches, or with
--calculate-per-token-loss by the tokens of all ranks, and averages gradients across ranks (core_v0.15.0
pipeline_parallel/schedules.py:214, distributed/finalize_model_grads.py). transformers' model and torch's AdamW replace
its own.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from attncheck_drivers.models import (  # type: ignore[import-not-found]
    make_model,
    make_optimizer,
)
from attncheck_drivers.rollouts import Rollout, RolloutRecord, iter_steps  # type: ignore[import-not-found]
from attncheck_watcher.takeover import run_ranks, stand_in_for  # type: ignore[import-not-found]
from torch import Tensor
from transformers import AutoTokenizer

NEVER_USED = ("ray", "sglang", "sglang_router", "httpx", "wandb")  # imported next to the options
SWITCHED_OFF = {"use_kl_loss": False, "kl_loss_coef": 0.0, "entropy_coef": 0.0, "rollout_top_p": 1.0, "use_opd": False}
# Classes that add an engine's own options to slime's parser, before v0.3.1 (v0.2.2 utils/arguments.py:956).
ENGINE_OPTIONS = {"sglang.srt.server_args": "ServerArgs", "sglang_router.launch_router": "RouterArgs"}
BACKEND = "slime.backends.megatron_utils"
pad = torch.nn.utils.rnn.pad_sequence


class ParallelState(ModuleType):
    """`megatron.core.mpu` with data parallelism only; `alone` is the group of this rank."""

    alone: Any

    def __getattr__(self, name: str) -> Any:
        """Return a function of its name: of a group, its size, this rank in it, or whether this is the last stage."""
        if name.startswith("__"):
            raise AttributeError(name)
        group = None if "data_parallel" in name else self.alone
        size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        value = {"group": group, "size": size, "rank": rank}.get(name.rpartition("_")[2], True)
        return lambda *arguments, **options: value


class NoOptions:
    """An engine's options, if it is not installed: none."""

    @staticmethod
    def add_cli_args(*arguments: Any, **options: Any) -> None:
        """Add nothing to a parser."""


def cross_entropy(logits: Tensor, targets: Tensor, group: Any = None) -> Tensor:
    """Return what Megatron's fused function of this name does: each token's loss, of (tokens, 1, vocabulary)."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def parse_options() -> argparse.Namespace:
    """Return the options that slime's own parser reads from the command."""
    stand_in_for(NEVER_USED, None)
    for module, name in ENGINE_OPTIONS.items():
        vars(importlib.import_module(module)).setdefault(name, NoOptions)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("slime.utils.arguments").get_slime_extra_args_provider()(parser)
    args = parser.parse_known_args()[0]
    args.eps_clip_high = args.eps_clip if args.eps_clip_high is None else args.eps_clip_high  # as when it validates
    vars(args).update({name: value for name, value in SWITCHED_OFF.items() if hasattr(args, name)})
    return args


def main(configuration: str) -> None:
    """Run the training steps with options that slime has parsed."""
    with open(configuration, "rb") as stream:
        args = pickle.load(stream)  # written by the process that started this one
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    loss = import_loss()
    model = make_model(args.hf_checkpoint, "sdpa", False, {}).train()
    optimizer = make_optimizer(model, args.lr, None, 0.0)
    record, size = RolloutRecord(rank), args.micro_batch_size
    tokenizer = AutoTokenizer.from_pretrained(args.hf_checkpoint)
    for rollouts in iter_steps(args.global_batch_size // ranks, rank, ranks, tokenizer):
        batches = [make_batch(args, rollouts[place : place + size]) for place in range(0, len(rollouts), size)]
        with torch.no_grad():
            for batch in batches:
                batch["log_probs"] = compute_log_probabilities(args, loss, batch, compute_logits(model, batch))
                batch["rollout_log_probs"] = batch["log_probs"]  # those of an engine that computes the same
        record.add_step(rollouts, [row.tolist() for batch in batches for row in batch["log_probs"]])
        counts = torch.tensor(sum(len(row) for batch in batches for row in batch["loss_masks"]) / ranks)
        torch.distributed.all_reduce(counts)
        divisor = counts if args.calculate_per_token_loss else len(batches)
        for batch in batches:
            logits = compute_logits(model, batch)
            known = {"args": args, "batch": batch, "num_microbatches": len(batches), "logits": logits}
            known["step_global_batch_size"] = args.global_batch_size
            names = inspect.signature(loss.loss_function).parameters
            value = loss.loss_function(*(known[name] for name in names))[0]
            (value / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()


def import_loss() -> Any:
    """Return the module of slime's loss, with the functions of Megatron that it calls, but without its trainer."""
    core, fused = ModuleType("megatron.core"), ModuleType("megatron.core.fusions.fused_cross_entropy")
    mpu = vars(core)["mpu"] = ParallelState("megatron.core.mpu")
    mpu.alone = torch.distributed.new_group([torch.distributed.get_rank()], use_local_synchronization=True)
    vars(fused)["fused_vocab_parallel_cross_entropy"] = cross_entropy
    sys.modules |= {"megatron.core": core, "megatron.core.mpu": mpu, fused.__name__: fused}
    for name in ("megatron", "megatron.core.fusions"):
        sys.modules[name] = ModuleType(name)
    backend = ModuleType(BACKEND)  # its own __init__ patches Megatron
    folders = importlib.import_module("slime").__path__
    backend.__path__ = [os.path.join(folder, "backends", "megatron_utils") for folder in folders]
    sys.modules[BACKEND] = backend
    return importlib.import_module(f"{BACKEND}.loss")


def make_batch(args: Any, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return rollouts under the names of slime's batches."""
    rows = [torch.tensor((*rollout.prompt, *rollout.response)) for rollout in rollouts]
    masks = [torch.ones(len(rollout.response)) for rollout in rollouts]
    sums = [mask.sum() for mask in masks]
    return {
        "unconcat_tokens": rows,
        "total_lengths": [len(row) for row in rows],
        "response_lengths": [len(mask) for mask in masks],
        "loss_masks": masks,
        "rollout_mask_sums": sums,
        "group_mask_sums": sums,  # before v0.3.1
        "advantages": [mask * rollout.advantage for mask, rollout in zip(masks, rollouts)],
    }


def compute_logits(model: Any, batch: dict[str, Any]) -> Tensor:
    """Return the logits of a batch's rows one after another: (1, tokens, vocabulary)."""
    rows = batch["unconcat_tokens"]
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    tokens = pad(rows, batch_first=True)
    output = model(input_ids=tokens, attention_mask=mask, use_cache=False)
    logits: Tensor = output.logits.float()[mask.bool()][None]
    return logits


def compute_log_probabilities(args: Any, loss: Any, batch: dict[str, Any], logits: Tensor) -> list[Tensor]:
    """Return the log-probabilities of each response, (tokens,), from slime's own function."""
    names = ("unconcat_tokens", "total_lengths", "response_lengths")
    result = loss.get_log_probs_and_entropy(logits, args=args, **{name: batch[name] for name in names})
    values: list[Tensor] = (result[1] if isinstance(result, tuple) else result)["log_probs"]
    return values


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(sys.argv[1])
    else:
        options = parse_options()
        path = os.path.join(os.environ["ATTNCHECK_WATCH"], "options.pickle")
        with open(path, "wb") as stream:
            pickle.dump(options, stream)
        sys.exit(run_ranks("attncheck_drivers.slime", path, options.actor_num_gpus_per_node))
