"""Small models of any architecture the installed transformers knows, built from cut configurations.

Weights are read only with `--full`; no remote code runs, nothing is downloaded.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn

from attncheck.smoke.worker.models.architectures import (
    SHAPES,
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
    Architecture,
    Unbuildable,
    load_architecture,
)
from attncheck.smoke.worker.models.randomness import switch_off_randomness
from attncheck.smoke.worker.models.shrink import (
    cut_heads,
    decoder_config,
    has_configured_heads,
    set_number,
    shrink_config,
    widen_config,
)

__all__ = [
    "SHAPES",
    "SPECIAL_TOKENS",
    "VOCABULARY_SIZE",
    "Architecture",
    "Unbuildable",
    "build_model",
    "load_architecture",
    "stay_offline",
]
SHARP_STD = 0.1  # standard deviation of weights under which attention is far from uniform


def build_model(
    source: Architecture,
    implementation: str,
    dtype: torch.dtype,
    device: Any,
    max_tokens: int,
    seed: int,
    sharp_weights: bool,
) -> nn.Module:
    """Return the model in train mode, with the same weights for the same seed and every dropout and jitter off.

    Raises `Unbuildable` for an architecture that the installed transformers cannot build, and what transformers raises
    for an implementation that it refuses.
    """
    import transformers

    attention_options = {"attn_implementation": implementation} if implementation else {}
    if source.weights:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.weights, local_files_only=True, trust_remote_code=False, dtype=dtype, **attention_options
        )
        return _prepare_for_training(model, dtype, device)
    try:
        config = shrink_config(source, max_tokens)
    except NotImplementedError as error:  # xlnet's and prophetnet's classes have fields that cannot be set
        raise Unbuildable(f"smoke cannot cut {source.name} small: {error}") from None
    if _width_sets_head_dim(transformers, source, config):
        narrow = cut_heads(config) if source.cuts_heads else None
        config = narrow if narrow is not None and _can_be_made(transformers, narrow, seed) else widen_config(config)
    if sharp_weights:
        for level in (config, decoder_config(config)):
            set_number(level, "initializer_range", SHARP_STD)
    model = _instantiate_model(transformers, copy.deepcopy(config), attention_options, seed)
    _sharpen_sinks(model, seed)
    return _prepare_for_training(model, dtype, device)


_width_sets_head_dim_cache: dict[tuple[str, int], bool] = {}  # by the model's name and vocabulary size


def _width_sets_head_dim(transformers: Any, source: Architecture, config: Any) -> bool:
    """Say whether the class derives head_dim from the hidden size, so that cutting that changes the heads or fails."""
    key = (source.name, source.vocabulary_size)
    if key not in _width_sets_head_dim_cache:
        try:
            model = _instantiate_model(transformers, copy.deepcopy(config), {"attn_implementation": "eager"}, 0)
            _run_once(model)
            _width_sets_head_dim_cache[key] = not has_configured_heads(model, config)
        except (ValueError, RuntimeError, AttributeError):
            _width_sets_head_dim_cache[key] = True
    return _width_sets_head_dim_cache[key]


def _run_once(model: Any) -> None:
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=False)


def _can_be_made(transformers: Any, config: Any, seed: int) -> bool:
    """Return whether a class takes so few heads: blenderbot's decoder has its own number, codegen wants four."""
    try:
        _run_once(_instantiate_model(transformers, copy.deepcopy(config), {"attn_implementation": "eager"}, seed))
    except (ValueError, RuntimeError, AttributeError):
        return False
    return True


def _prepare_for_training(model: Any, dtype: torch.dtype, device: Any) -> nn.Module:
    prepared: nn.Module = model.to(dtype).to(device).train()
    switch_off_randomness(prepared)
    return prepared


def _instantiate_model(transformers: Any, config: Any, attention_options: dict[str, str], seed: int) -> Any:
    torch.manual_seed(seed)
    is_causal_lm = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    auto_class = transformers.AutoModelForCausalLM if is_causal_lm else transformers.AutoModelForImageTextToText
    return auto_class.from_config(config, **attention_options)


def _sharpen_sinks(model: Any, seed: int) -> None:
    """Give attention sinks values that matter: transformers may leave them empty."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".sinks"):
            parameter.data.copy_(1.0 + torch.randn(parameter.shape, generator=generator))


def stay_offline() -> None:
    """Keep transformers from looking anything up on the Hub; call it before transformers is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
