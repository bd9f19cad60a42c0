"""Computes an optimiser's step again: runs its class on recorded weights and gradients."""

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DOCUMENTED = ("torch.optim.", "transformers.optimization.")  # modules with documented optimisers
ON_CPU = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


def step_again(update: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Return the weights after an optimiser's step, by name; None for a class that no package documents."""
    name = update["classes"][0]
    if not name.startswith(DOCUMENTED):
        return None
    module, _, kind = name.rpartition(".")
    weights = {
        name: torch.nn.Parameter(value.clone()) for name, value in update["weights"].items() if torch.is_tensor(value)
    }
    for name, gradient in update["gradients"].items():
        if name in weights and torch.is_tensor(gradient):
            weights[name].grad = gradient.clone()
    groups = [(group, [n for n in group["parameters"] if n in weights]) for group in update["groups"]]
    groups = [(group, names) for group, names in groups if names]
    if not groups:
        return {}
    optimizer: Any = getattr(importlib.import_module(module), kind)(
        [{"params": [weights[name] for name in names]} for _, names in groups]
    )
    for (group, names), own in zip(groups, optimizer.param_groups, strict=True):
        own.update(group["options"])
        own.update({key: value for key, value in ON_CPU.items() if key in own})
        for name in names:
            if state := update["state"].get(name):
                copies = {key: value.clone() if torch.is_tensor(value) else value for key, value in state.items()}
                optimizer.state[weights[name]].update(copies)
    optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}
