"""Switches off randomness in a model's forward pass while steps are compared: dropouts, and NEFTune's noise.

These settings are part of the launch, but a random step cannot be recomputed. Sources: transformers 5.17
`integrations/neftune.py` (`neftune_post_forward_hook`: noise of `module.neftune_noise_alpha` in training); attention
layers pass a float to their kernels; torch 2.13 `nn/modules/dropout.py` (`p`).
"""

from __future__ import annotations

import re
from typing import Any

RATE = re.compile(r"(\w+_)?(dropout|drop)(_prob|_p)?|layerdrop|neftune_noise_alpha")


class Randomness:
    """The rates of a model that were switched off, by module and name."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self._originals: list[tuple[Any, str, float]] = []

    def switch_off(self, model: Any) -> None:
        """Set every rate of the model to zero."""
        import torch

        for name, module in model.named_modules():
            is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
            for attribute, rate in list(vars(module).items()):
                is_rate = attribute == "p" if is_dropout else RATE.fullmatch(attribute)
                if is_rate and isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0:
                    self._originals.append((module, attribute, rate))
                    self.rates[f"{name}{'' if is_dropout else f'.{attribute}'}"] = float(rate)
                    setattr(module, attribute, 0.0)

    def restore(self) -> None:
        """Restore every rate."""
        while self._originals:
            module, attribute, rate = self._originals.pop()
            setattr(module, attribute, rate)
