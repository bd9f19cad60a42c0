"""Small models of any architecture the installed transformers knows, built from cut configurations.

No weights are read but with `full`; no remote code runs, nothing is fetched.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn

from attncheck.smoke.worker.models.architectures import (
    SHAPES,
    SPECIAL,
    VOCABULARY,
    Architecture,
    Unbuildable,
    architecture,
)
from attncheck.smoke.worker.models.shrink import configuration, heads_kept, set_where, text_of, widened

__all__ = ["SHAPES", "SPECIAL", "VOCABULARY", "Architecture", "Unbuildable", "architecture", "build", "stay_offline"]
SHARP = 0.1  # standard deviation of weights under which attention is far from uniform


def build(
    source: Architecture, implementation: str, dtype: torch.dtype, device: Any, longest: int, seed: int, sharp: bool
) -> nn.Module:
    """Return the model in train mode, dropout off, with the same weights for the same seed.

    Raises `Unbuildable` for an architecture that the installed transformers cannot build, and what transformers raises
    for an implementation that it refuses.
    """
    import transformers

    chosen = {"attn_implementation": implementation} if implementation else {}
    if source.weights:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.weights, local_files_only=True, trust_remote_code=False, dtype=dtype, **chosen
        )
        return _ready(model, dtype, device)
    cut = configuration(source, longest)
    if _too_narrow(transformers, source, cut):
        cut = widened(cut)
    if sharp:
        for level in (cut, text_of(cut)):
            set_where(level, "initializer_range", SHARP)
    model = _made(transformers, copy.deepcopy(cut), chosen, seed)
    _sharpen_sinks(model, seed)
    return _ready(model, dtype, device)


_narrow: dict[tuple[str, int], bool] = {}  # by model's name and vocabulary: found out once


def _too_narrow(transformers: Any, source: Architecture, cut: Any) -> bool:
    """Say whether the class derives head_dim from the width, so that the cut width changes the heads or fails."""
    key = (source.name, source.vocabulary)
    if key not in _narrow:
        try:
            model = _made(transformers, copy.deepcopy(cut), {"attn_implementation": "eager"}, 0)
            with torch.no_grad():
                model(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=False)
            _narrow[key] = not heads_kept(model, cut)
        except (ValueError, RuntimeError, AttributeError):
            _narrow[key] = True
    return _narrow[key]


def _ready(model: Any, dtype: torch.dtype, device: Any) -> nn.Module:
    ready: nn.Module = model.to(dtype).to(device).train()
    return ready


def _made(transformers: Any, config: Any, chosen: dict[str, str], seed: int) -> Any:
    torch.manual_seed(seed)
    causal = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForImageTextToText
    return kind.from_config(config, **chosen)


def _sharpen_sinks(model: Any, seed: int) -> None:
    """Give attention sinks values that matter: transformers may leave them empty."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".sinks"):
            parameter.data.copy_(1.0 + torch.randn(parameter.shape, generator=generator))


def stay_offline() -> None:
    """Keep transformers from looking anything up on the Hub; call it before transformers is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
