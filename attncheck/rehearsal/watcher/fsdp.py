"""Reads weights and gradients that FSDP (version 1) keeps in flat parameters, each split across all ranks.

Source: torch 2.13.0 `distributed/fsdp/_flat_param.py`: `FlatParamHandle` (`sharded_grad`, `_get_unflat_views`,
`_fully_sharded_module`) and `FlatParameter` (`_local_shard`; `_fqns`, names relative to that module; `_params`, in
which use_orig_params keeps the model's own). FSDP2's gradients are DTensors, which gather themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from .devices import shard_on_cpu

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # in the names of parameters
_handles: dict[int, Any] = {}  # by the id of the module whose parameters a handle has


def watch_fsdp(take_gradients: Callable[[], None], module: Any) -> None:
    """Record the handle of each FSDP-wrapped model, which the model does not reference; read unclipped gradients."""
    shard_on_cpu(module)
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
    """Return whether FSDP manages parameters of a model."""
    return any(id(module) in _handles for module in model.modules())


def list_sizes(model: Any) -> Iterator[tuple[str, bool, int]]:
    """Yield the name of each parameter of a flattened model, whether it is trained, and its number of elements."""
    for prefix, handle in _iter_handles(model):
        for name, is_trained, shape in zip(
            _list_names(prefix, handle), _list_trained(handle), handle.flat_param._shapes
        ):
            yield name, is_trained, math.prod(shape)


def read_gradients(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each trained parameter of a flattened model, with its gradient or None.

    Every rank must call it.
    """
    for prefix, handle in _iter_handles(model):
        trained = _list_trained(handle)
        if not any(trained):
            continue
        gradients = [None] * len(trained) if handle.sharded_grad is None else _unflatten(handle, handle.sharded_grad)
        for name, is_trained, gradient in zip(_list_names(prefix, handle), trained, gradients):
            if is_trained:
                yield name, gradient


def read_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the whole values of each parameter of a flattened model; every rank must call this."""
    for prefix, handle in _iter_handles(model):
        part = handle.flat_param._local_shard.detach()  # in the trained dtype, not the one of the forward
        yield from zip(_list_names(prefix, handle), _unflatten(handle, part))


def _iter_handles(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each module with flat parameters ("" for the model itself), and their handle."""
    for name, module in model.named_modules():
        handle = _handles.get(id(module))
        if handle is not None:
            yield name, handle


def _list_names(prefix: str, handle: Any) -> list[str]:
    """Return the names of a handle's parameters in the model, without the parts added by FSDP and checkpointing."""
    names = [f"{prefix}.{name}" if prefix else name for name in handle.flat_param._fqns]
    for wrapper in WRAPPERS:
        names = [name.replace(wrapper, "") for name in names]
    return names


def _list_trained(handle: Any) -> list[bool]:
    """Return, for each parameter of a handle, whether it is trained."""
    flat = handle.flat_param
    return [own.requires_grad for own in flat._params or ()] or [flat.requires_grad] * len(flat._fqns)


def _unflatten(handle: Any, part: Any) -> list[Any]:
    """Return the complete values of a handle's parameters, from this rank's flat part."""
    import torch

    whole = part
    if handle.uses_sharded_strategy:
        part = part.to(handle.device).contiguous()  # FSDP may keep it on the CPU
        whole = part.new_empty(part.numel() * handle.world_size)
        torch.distributed.all_gather_into_tensor(whole, part, group=handle.process_group)
    return list(handle._get_unflat_views(whole[: handle.flat_param._unpadded_unsharded_size.numel()]))
