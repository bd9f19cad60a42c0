"""Reads a model's complete parameters and gradients by their own names, for FSDP 1 or 2, ZeRO, or none.

Every rank must take part in reading data that is split across ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import fsdp
from .deepspeed import is_partitioned, read_gradient


def list_sizes(model: Any) -> Iterator[tuple[str, bool, int]]:
    """Yield each parameter by name, whether it is trained, and its number of elements."""
    if fsdp.is_flat(model):
        yield from fsdp.list_sizes(model)
        return
    for name, parameter in model.named_parameters():
        yield name, parameter.requires_grad, getattr(parameter, "ds_numel", parameter.numel())  # a part with ZeRO 3


def read_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter by name with its values; for ZeRO 3 only this rank's part."""
    if fsdp.is_flat(model):
        yield from fsdp.read_weights(model)
        return
    yield from ((name, _gather(parameter.detach())) for name, parameter in model.named_parameters())


def read_frequencies(model: Any) -> dict[str, Any]:
    """Return a model's rotary frequencies by name: buffers, which are not saved with its weights.

    Those that a module of the model's current configuration would have are added, with "*" after their names, and its
    factors on cosines and sines, one for each kind of layers.
    """
    frequencies = {name: value.detach().cpu() for name, value in model.named_buffers() if name.endswith("inv_freq")}
    for path in dict.fromkeys(name.rpartition(".")[0] for name in frequencies):
        with contextlib.suppress(Exception):  # some modules need more than a configuration
            again = type(module := model.get_submodule(path))(module.config)
            frequencies |= {
                f"{path}.{name}*": float(value)
                for name, value in vars(module).items()
                if name.endswith("attention_scaling")
            }
            frequencies |= {
                f"{path}.{name}*": value.detach().cpu()
                for name, value in again.named_buffers()
                if name.endswith("inv_freq") and value.shape == frequencies[f"{path}.{name}"].shape
            }
    return frequencies


def find_prefix(model: Any) -> str:
    """Return what the names of a model without a head lack of those of its class with one: "model.", "" if nothing."""
    prefix = f"{model.base_model_prefix}."
    is_bare = model.base_model is model and len(prefix) > 1 and model.get_output_embeddings() is None
    return prefix if is_bare and not any(name.startswith(prefix) for name, _ in model.named_parameters()) else ""


def list_tied(model: Any) -> dict[str, str]:
    """Return the names of parameters that are another name's too, each with the name by which they are recorded."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: names[id(parameter)] for name, parameter in every if name != names[id(parameter)]}


def read_gradients(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each trained parameter by name, with its gradient or None."""
    if fsdp.is_flat(model):
        yield from fsdp.read_gradients(model)
        return
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not is_partitioned(parameter):
            yield name, None if parameter.grad is None else _gather(parameter.grad)
        elif (gradient := read_gradient(parameter)) is not None:  # otherwise it is unknown whether it has one
            yield name, gradient


def _gather(tensor: Any) -> Any:
    """Return a tensor that is sharded across ranks (FSDP 2's DTensor) as one."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
