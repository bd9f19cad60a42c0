"""A model patched by liger-kernel, and the loss that it computes."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker import liger_patches
from attncheck.smoke.worker.data.packing import IGNORED, Batch


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the summed loss over what a batch predicts, made by the model itself, as under transformers' Trainer."""
    found: Tensor = model(**batch.inputs, labels=unshifted(batch)).loss
    return found * batch.tokens


def unshifted(batch: Batch) -> Tensor:
    """Return a batch's labels as a model takes them: each token's own, which it shifts itself."""
    return torch.nn.functional.pad(batch.labels[:, :-1], (1, 0), value=IGNORED)


def patch(model: nn.Module) -> None:
    """Apply liger to a model as Trainer does, for as long as the model lives, and to no other model.

    The modules that call a function which liger replaces in a modelling file get a `forward` that finds liger's there.
    Raises ImportError where liger-kernel is missing.
    """
    with liger_patches.undone() as changes:
        liger_patches.apply("model", lambda: model)
        replaced = [place for place in changes() if inspect.isfunction(place.before)]
    for module in model.modules():
        forward: Any = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
        own = {p.name: p.after for p in replaced if vars(p.owner) is getattr(forward, "__globals__", None)}
        if own.keys() & set(forward.__code__.co_names):
            module.forward = MethodType(_seeing(forward, own), module)


def _seeing(function: Any, names: dict[str, Any]) -> FunctionType:
    """Return a function's copy to which some global names mean something else.

    Without `__name__` torch.compile looks names up in the copy's globals in place of the module's.
    """
    world = {**function.__globals__, **names}
    world.pop("__name__", None)
    copied = FunctionType(function.__code__, world, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
