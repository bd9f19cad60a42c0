"""A model patched by liger-kernel, and its loss."""

import inspect
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.smoke.worker import liger_patches
from attncheck.smoke.worker.data.packing import IGNORE_INDEX, Batch


def summed_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss summed over a batch's predicted tokens, as computed by the model under transformers' Trainer."""
    mean_loss: Tensor = model(**batch.inputs, labels=unshifted_labels(batch)).loss
    return mean_loss * batch.predicted_tokens


def unshifted_labels(batch: Batch) -> Tensor:
    """Return a batch's labels unshifted, because the model shifts them itself."""
    return torch.nn.functional.pad(batch.labels[:, :-1], (1, 0), value=IGNORE_INDEX)


def patch_model(model: nn.Module) -> None:
    """Apply liger to one model as Trainer does, permanently, and to no other model.

    If a module calls a function of a modelling file that liger replaces, its `forward` gets globals with liger's
    function. Raises ImportError if liger-kernel is missing.
    """
    with liger_patches.undo_on_exit() as list_assignments:
        liger_patches.build_patched("model", lambda: model)
        replaced = [assignment for assignment in list_assignments() if inspect.isfunction(assignment.before)]
    for module in model.modules():
        forward: Any = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
        replacements = {p.name: p.after for p in replaced if vars(p.owner) is getattr(forward, "__globals__", None)}
        if replacements.keys() & set(forward.__code__.co_names):
            module.forward = MethodType(_copy_with_globals(forward, replacements), module)


def _copy_with_globals(function: Any, replacements: dict[str, Any]) -> FunctionType:
    """Return a copy of a function with other values for some names in its globals.

    Without `__name__`, torch.compile searches names in the copy's globals instead of the module's.
    """
    copied_globals = {**function.__globals__, **replacements}
    copied_globals.pop("__name__", None)
    copied = FunctionType(
        function.__code__, copied_globals, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
