"""Turns off randomness in a model's forward pass while steps are compared: dropouts, and NEFTune's noise.

These settings are part of the launch, but a random step cannot be recomputed. Sources: transformers 5.17
`integrations/neftune.py` (`neftune_post_forward_hook`: noise of `module.neftune_noise_alpha` in training); attention
layers pass a float to their kernels; torch 2.13 `nn/modules/dropout.py` (`p`).
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

from .modules import describe_code, is_foreign

OWN = "the script's"  # dropout in code of the script, whose author means it
DROPS = re.compile(r"dropout|bernoulli")
RATE = re.compile(r"(\w+_)?(dropout|drop)(_prob|_p)?|layerdrop|neftune_noise_alpha")


class Randomness:
    """The rates of a model that were turned off, by module and name."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self._originals: list[tuple[Any, str, Any]] = []

    def switch_off(self, model: Any) -> None:
        """Set every rate of the model to zero."""
        import torch

        self._switch_off_function(torch.nn.functional)
        for name, module in model.named_modules():
            is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
            for attribute, rate in list(vars(module).items()):
                is_rate = attribute == "p" if is_dropout else RATE.fullmatch(attribute)
                if is_rate and isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0:
                    self._originals.append((module, attribute, rate))
                    self.rates[f"{name}{'' if is_dropout else f'.{attribute}'}"] = float(rate)
                    setattr(module, attribute, 0.0)

    def _switch_off_function(self, functional: Any) -> None:
        """Replace torch's function, to which a module in training passes a rate that no attribute has.

        TorchScript does not compile the replacement, which is therefore in place only while steps are compared.
        """
        import torch

        original = functional.dropout

        @functools.wraps(original)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p > 0 and not torch.compiler.is_compiling():
                module = sys._getframe(1).f_locals.get("self")
                if isinstance(module, torch.nn.Module) and module.training:
                    own = f"{OWN} " if is_foreign(module.forward) else ""
                    self.rates[f"{own}{describe_code(module.forward)}"] = float(p)
                    p = 0.0
            return original(input, p, training, inplace)

        if not any(holder is functional for holder, _, _ in self._originals):
            self._originals.append((functional, "dropout", original))
            functional.dropout = dropout

    def restore(self) -> None:
        """Restore every rate."""
        while self._originals:
            module, attribute, rate = self._originals.pop()
            setattr(module, attribute, rate)


@contextlib.contextmanager
def keep_randomness() -> Iterator[None]:
    """Restore the state of the process's random number generators afterwards."""
    import torch

    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])


def make_listener(operators: list[str]) -> Any:
    """Return a dispatch mode that adds the names of operators that draw random numbers to a list."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):
        supports_higher_order_operators = True  # flex_attention is one, and refuses other modes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            schema = getattr(func, "_schema", None)  # flex_attention has none
            names = [argument.name for argument in schema.arguments] if schema else []
            given = {**dict(zip(names, args)), **(kwargs or {})}
            rate = given.get("dropout_p", given.get("p", 0.0) if DROPS.search(str(func)) else 0.0)
            if isinstance(rate, (int, float)) and rate > 0 and str(func) not in operators:
                operators.append(str(func))
            return func(*args, **(kwargs or {}))

    return Listener()
