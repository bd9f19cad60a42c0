"""Turns off random numbers in training mode: every dropout module, and every rate that code reads.

transformers keeps its rates in three places: `p` of `nn.Dropout` and similar modules, a number in a module
(`self.dropout`, `self.activation_dropout`, `self.layerdrop`, `self.jitter_noise`, `self.drop_prob`), and a field of a
configuration that forward reads (`self.config.attention_dropout`). All are found on the built model, by name.
"""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

# Names of rates in transformers 5.17: attention_dropout, attn_pdrop, layerdrop, drop_path_rate, router_jitter_noise, …
RATE_NAME = re.compile(r"drop|jitter|router_noise")


def switch_off_randomness(model: nn.Module) -> None:
    """Set every rate of dropout, layer drop and jitter in a model and its configurations to 0."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for holder in _iter_rate_holders(model):
        for name, value in list(vars(holder).items()):
            if RATE_NAME.search(name) and _is_rate(value):
                setattr(holder, name, 0.0)


def find_rates(config: Any) -> dict[tuple[str, str], float]:
    """Return the nonzero rates of a configuration: by the part of it ("": itself) and their name."""
    parts = {"": config, **{name: value for name, value in vars(config).items() if hasattr(value, "to_dict")}}
    return {
        (part, name): value
        for part, holder in parts.items()
        for name, value in vars(holder).items()
        if RATE_NAME.search(name) and _is_rate(value)
    }


def _iter_rate_holders(model: nn.Module) -> Iterator[Any]:
    """Yield a model's modules, and their configurations and parts of configurations, each once."""
    seen: set[int] = set()
    waiting: list[Any] = list(model.modules())
    while waiting:
        holder = waiting.pop()
        if id(holder) not in seen:
            seen.add(id(holder))
            yield holder
            waiting += [
                value for value in vars(holder).values() if hasattr(value, "to_dict") and hasattr(value, "__dict__")
            ]


def _is_rate(value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value <= 1.0
