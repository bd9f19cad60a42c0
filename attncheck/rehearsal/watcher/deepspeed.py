"""Reads the gradients that DeepSpeed's ZeRO takes from parameters, and lets it train without a GPU and a compiler.

Gradients are read before the engine's step, which passes them to the optimiser and deletes them.

Otherwise DeepSpeed's own CPU code runs (DS_ACCELERATOR=cpu): ZeRO, the order of its hooks, the scale of its loss.
Sources: deepspeed 0.19.6 `ops/adam/fused_adam.py`, `runtime/zero/utils.py` (ZeRO accepts torch's AdamW),
`comm/torch.py` (`build_shm_op` may be None), `utils/tensor_fragment.py` (`safe_get_full_grad`, across all ranks).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .absent import note


def watch_engine(take_gradients: Callable[[], None], module: Any) -> None:
    """Call `take_gradients` before each update of a DeepSpeed engine."""
    original = module.DeepSpeedEngine.step

    @functools.wraps(original)
    def step(engine: Any, *arguments: Any, **options: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            take_gradients()
        return original(engine, *arguments, **options)

    module.DeepSpeedEngine.step = step


def is_partitioned(parameter: Any) -> bool:
    """Return whether ZeRO splits a parameter or its gradient."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def read_gradient(parameter: Any) -> Any:
    """Return a partitioned parameter's whole gradient, None if DeepSpeed has none; every rank must call this."""
    from deepspeed.utils import safe_get_full_grad  # type: ignore[import-not-found]

    return safe_get_full_grad(parameter)


def replace_compiled_adam(module: Any) -> None:
    """Replace the AdamW that DeepSpeed compiles, for a GPU or for offloaded states, by torch's if there is no GPU.

    Compilers take minutes of processor time, and may be missing.
    """
    import torch

    class Adam(torch.optim.AdamW):
        def __init__(self, params: Any = None, model_params: Any = None, **options: Any) -> None:
            known = {name: options[name] for name in ("lr", "betas", "eps", "weight_decay") if name in options}
            super().__init__(model_params if params is None else params, **known)
            note(os.environ["ATTNCHECK_WATCH"], "optimizer", type(self).__name__)

    for name in set() if torch.cuda.is_available() else {"FusedAdam", "DeepSpeedCPUAdam"} & vars(module).keys():
        setattr(module, name, type(name, (Adam,), {}))


def skip_shared_memory(module: Any) -> None:
    """Make collectives use gloo instead of shared memory, for which DeepSpeed compiles code if there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        module.build_shm_op = lambda: None
