"""Describes an optimiser at the moment of its step: its parameters, settings, state and gradients.

Source: torch 2.13 `torch/optim/optimizer.py` (`profile_hook_step`: hooks of all optimisers run before an optimiser's
own; `param_groups`, `state`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN_TYPES = (bool, int, float, str, type(None))


def describe_optimizer(optimizer: Any, names: dict[int, str], keep: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return an optimiser before its step; `names` are the model's parameters by id, "" for other parameters.

    `keep` copies a tensor of the named parameter.
    """
    import torch

    groups, gradients, weights, state = [], {}, {}, {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    scale = getattr(optimizer, "grad_scale", None)  # of a fused step, which divides by a GradScaler's factor itself
    for group in optimizer.param_groups:
        options = {key: _read_plain(value) for key, value in group.items() if key != "params"}
        held = [(names.get(id(parameter), ""), parameter) for parameter in group["params"]]
        groups.append({"parameters": [name for name, _ in held], "options": options})
        for name, parameter in held:
            if not name or hasattr(parameter, "full_tensor"):  # of a flat or sharded parameter
                continue
            weights[name] = keep(name, parameter.detach())
            if parameter.grad is not None:
                gradients[name] = keep(name, parameter.grad if scale is None else parameter.grad / scale)
            state[name] = {
                key: keep(name, value) if torch.is_tensor(value) else value
                for key, value in optimizer.state.get(parameter, {}).items()
                if torch.is_tensor(value) or isinstance(value, PLAIN_TYPES)
            }
    kind = type(optimizer)
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__[:-1]]
    return {
        "classes": bases,
        "groups": groups,
        "attributes": {key: _read_plain(vars(optimizer)[key]) for key in optimizer.defaults if key in vars(optimizer)},
        "gradients": gradients,
        "weights": weights,
        "state": state,
        "held": len(parameters),
        "reached": sum(parameter.grad is not None for parameter in parameters),
    }


def read_held(optimizer: Any, names: dict[int, str], keep: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the optimiser's own weights, by the model's names for them."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    named = [(names[id(parameter)], parameter) for parameter in held if id(parameter) in names]
    return {name: keep(name, value.detach()) for name, value in named if not hasattr(value, "full_tensor")}


def list_stateful(optimizer: Any, names: dict[int, str]) -> list[str]:
    """Return the model's parameters for which an optimiser holds tensors, such as moments."""
    states = [(names.get(id(parameter)), state) for parameter, state in optimizer.state.items()]
    return [name for name, state in states if name and any(hasattr(value, "numel") for value in state.values())]


def count_planned(scheduler: Any) -> int:
    """Return the number of steps for which a learning-rate scheduler is made, 0 if it is not known.

    torch 2.13 optim/lr_scheduler.py; transformers 5.17.0 optimization.py binds `num_training_steps` to a LambdaLR's
    functions.
    """
    values = [getattr(own, "keywords", {}).get("num_training_steps") for own in getattr(scheduler, "lr_lambdas", ())]
    values += [getattr(scheduler, name, None) for name in ("T_max", "total_steps")]
    return next((int(value) for value in values if isinstance(value, (int, float)) and value), 0)


def find_lost_rates(scheduler: Any) -> str:
    """Return a line if a schedule takes groups with different rates to one.

    torch 2.13 optim/lr_scheduler.py: `OneCycleLR` sets `max_lr`, and from it the initial rate, of each group.
    """
    groups = scheduler.optimizer.param_groups
    rates, highest = ({_read_plain(group.get(name)) for group in groups} for name in ("lr", "max_lr"))
    if len(rates) == 1 or len(highest) != 1 or None in {*rates, *highest}:
        return ""
    own, name = ", ".join(f"{rate:g}" for rate in sorted(rates)), type(scheduler).__name__
    return f"{name} takes every group of the optimiser to {highest.pop():g}: their own rates, {own}, have no effect"


def _read_plain(value: Any) -> Any:
    """Return an option of a group as plain data: a one-number tensor as a number, None for anything else."""
    if hasattr(value, "numel"):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, (tuple, list)):
        return [_read_plain(item) for item in value]
    return value if isinstance(value, PLAIN_TYPES) else None
