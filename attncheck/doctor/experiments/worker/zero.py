"""Measures how much of each accumulated micro-batch a step of the installed DeepSpeed takes, on a CPU.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .ranks import find_port

MICRO_BATCHES = 4  # two in the middle; a quarter is exact in bfloat16
WIDTH = 4
CONFIGURATIONS = ((1, ""), (2, ""), (2, "cpu"), (3, ""), (3, "cpu"))


def start_deepspeed(folder: str) -> Any:
    """Return the installed DeepSpeed, ready for one rank on a CPU; what it builds goes into `folder`."""
    os.environ.update(
        DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=folder, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(find_port()),
    )  # fmt: skip
    deepspeed = importlib.import_module("deepspeed")
    # It would compile C++ that several ranks of a host need.
    vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None
    return deepspeed


def measure_weights(deepspeed: Any, stage: int, offload: str) -> dict[str, list[float]]:
    """Return {"weights": …}: for each micro-batch, the share of its gradient that the step took; 1 means all of it.

    Micro-batch i reaches column i of a zero weight alone, with gradient -1 over the number of micro-batches: after one
    step of SGD, column i is the weight of micro-batch i.
    """
    import torch

    model = torch.nn.Linear(MICRO_BATCHES, WIDTH, bias=False, dtype=torch.bfloat16)
    torch.nn.init.zeros_(model.weight)
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": offload}
    configuration = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": MICRO_BATCHES, "bf16": {"enabled": True},
        "zero_optimization": zero, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 30,
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=float(MICRO_BATCHES))
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)[0]
    for rows in torch.eye(MICRO_BATCHES, dtype=torch.bfloat16):
        engine.backward(-engine(rows[None]).sum())
        engine.step()
    weight = deepspeed.utils.safe_get_full_fp32_param(next(iter(engine.module.parameters())))
    return {"weights": [round(float(value), 4) for value in weight.float().mean(0)]}
