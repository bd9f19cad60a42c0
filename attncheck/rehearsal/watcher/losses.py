"""Notes what a script gives torch's losses, if it is not what they document: probabilities for logits or logarithms.

torch 2.13 nn/functional.py: `cross_entropy` takes logits, `nll_loss` and `kl_div` log-probabilities.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .script_code import CODE, find_script_frame, name_line

INPUTS = {"cross_entropy": "logits", "nll_loss": "log-probabilities", "kl_div": "log-probabilities"}
SUMS_TO_ONE = 1e-3
MAX_CALLS = 8  # of each loss, which are looked at


class LossWatch:
    """Looks at the inputs of losses; TorchScript cannot compile it, so it is in place only while steps are recorded."""

    def __init__(self) -> None:
        import torch

        self._functional = torch.nn.functional
        self._originals = {name: getattr(self._functional, name) for name in INPUTS}
        for name, original in self._originals.items():
            setattr(self._functional, name, _watch_calls(name, original))

    def stop(self) -> None:
        """Put the losses back."""
        for name, original in self._originals.items():
            setattr(self._functional, name, original)


def _watch_calls(name: str, original: Any) -> Any:
    calls: list[None] = []

    @functools.wraps(original)
    def call(input: Any, *arguments: Any, **options: Any) -> Any:
        import torch

        if len(calls) < MAX_CALLS and not torch.compiler.is_compiling() and torch.is_tensor(input):
            calls.append(None)
            frame = find_script_frame(sys._getframe(1)) if input.requires_grad and _are_probabilities(input) else None
            if frame is not None:
                CODE["probabilities"] = [f"{name} in {name_line(frame)} takes {INPUTS[name]}, and gets probabilities"]
        return original(input, *arguments, **options)

    return call


def _are_probabilities(values: Any) -> bool:
    """Return whether values add up to 1 over the classes, which are the second or the last dimension."""
    values = values.detach().float()
    if values.dim() < 2 or not values.numel() or bool((values < 0).any()):
        return False
    sums = [values.sum(dim) for dim in (1, -1) if values.shape[dim] > 1]
    return any(bool(((total - 1).abs() < SUMS_TO_ONE).all()) for total in sums)
