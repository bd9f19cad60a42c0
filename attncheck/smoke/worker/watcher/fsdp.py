"""Reads the gradients that FSDP (version 1) holds in flat parameters, of which every rank has a part.

Source: torch 2.13.0 `distributed/fsdp/_flat_param.py`: `FlatParamHandle` (`sharded_grad`, `_get_unflat_views`,
`_fully_sharded_module`) and `FlatParameter` (`_fqns`, from that module on; `_params`, where use_orig_params keeps the
model's own). FSDP2's gradients are DTensors, which gather themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # in the names of parameters
_handles: dict[int, Any] = {}  # by the id of the module whose parameters a handle holds


def watch_fsdp(take_gradients: Callable[[], None], module: Any) -> None:
    """Note the handle of each model that FSDP wraps, which the model does not lead to; see gradients unclipped."""
    wrapper_class = module.FullyShardedDataParallel
    original, clip = wrapper_class.__init__, wrapper_class.clip_grad_norm_

    @functools.wraps(original)
    def initialize(wrapper: Any, *arguments: Any, **options: Any) -> None:
        original(wrapper, *arguments, **options)
        handle = getattr(wrapper, "_handle", None)
        if handle is not None:
            _handles[id(handle._fully_sharded_module)] = handle

    @functools.wraps(clip)
    def clip_grad_norm_(wrapper: Any, *arguments: Any, **options: Any) -> Any:
        take_gradients()
        return clip(wrapper, *arguments, **options)

    wrapper_class.__init__, wrapper_class.clip_grad_norm_ = initialize, clip_grad_norm_


def is_flat(model: Any) -> bool:
    """Return whether FSDP holds parameters of a model."""
    return any(id(module) in _handles for module in model.modules())


def read_gradients(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each trained parameter of such a model by its own name, with its gradient or None.

    Every rank takes part.
    """
    for prefix, module in model.named_modules():
        handle = _handles.get(id(module))
        if handle is None or not handle.flat_param.requires_grad:
            continue
        flat = handle.flat_param
        names = [clean_name(f"{prefix}.{name}" if prefix else name) for name in flat._fqns]
        trained = [own.requires_grad for own in flat._params or ()] or [True] * len(names)
        gradients = _unflatten(handle)
        for name, is_trained, gradient in zip(names, trained, gradients or [None] * len(names)):
            if is_trained:
                yield name, gradient


def clean_name(name: str) -> str:
    """Return a parameter's name without what FSDP and checkpointing put into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _unflatten(handle: Any) -> list[Any] | None:
    """Return the gradients of a handle's parameters, whole; None where it has none."""
    import torch

    gradient = handle.sharded_grad
    if gradient is None:
        return None
    if handle.uses_sharded_strategy:
        part = gradient.to(handle.device).contiguous()  # FSDP may keep it on the CPU
        gradient = part.new_empty(part.numel() * handle.world_size)
        torch.distributed.all_gather_into_tensor(gradient, part, group=handle.process_group)
    return list(handle._get_unflat_views(gradient[: handle.flat_param._unpadded_unsharded_size.numel()]))
