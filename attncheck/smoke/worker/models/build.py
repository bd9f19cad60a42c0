"""Small models of any architecture in the installed transformers, built from scaled-down configurations.

Weights are read only with `--full`; no remote code runs, and nothing is downloaded.
"""

import copy
import os
import sys
import tempfile
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
from attncheck.smoke.worker.models.fitting import describe_error, set_number
from attncheck.smoke.worker.models.randomness import switch_off_randomness
from attncheck.smoke.worker.models.shrink import (
    decoder_config,
    has_configured_heads,
    iter_fewer_heads,
    read_full_config,
    select_buildable_config,
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
    "check_cut",
    "explain_failure",
    "find_readable_config",
    "leave_out",
    "load_architecture",
    "stay_offline",
]
SHARP_STD = 0.1  # standard deviation of weights with which attention is far from uniform


def build_model(
    source: Architecture,
    implementation: str,
    dtype: torch.dtype,
    device: Any,
    max_tokens: int,
    seed: int,
    sharp_weights: bool,
) -> nn.Module:
    """Return the model in train mode, with weights from the seed and every dropout and jitter off.

    Raises `Unbuildable` for an architecture that the installed transformers cannot build, and transformers' own error
    for an implementation that it refuses.
    """
    import transformers

    attention_options = {"attn_implementation": implementation} if implementation else {}
    if source.weights:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.weights, local_files_only=True, trust_remote_code=False, dtype=dtype, **attention_options
        )
        return prepare_for_training(model, dtype, device)
    try:
        config = shrink_config(source, max_tokens)
    except NotImplementedError as error:  # xlnet's and prophetnet's classes have read-only fields
        raise Unbuildable(f"smoke cannot scale {source.name} down: {error}") from None
    if _width_sets_head_dim(transformers, source, config):
        narrow = iter_fewer_heads(config) if source.cuts_heads else iter(())
        makeable = (config for config in narrow if _can_be_made(transformers, config, seed))
        config = next(makeable, None) or widen_config(config)
    vars(decoder_config(config)).pop("cut_from", None)
    try:
        config = _reread(config)
    except Exception as error:  # the class decides the type of the exception
        raise Unbuildable(f"smoke cannot scale {source.name} down: {describe_error(error)}") from None
    if sharp_weights:
        for level in (config, decoder_config(config)):
            set_number(level, "initializer_range", SHARP_STD)
    try:
        model = _instantiate_model(transformers, copy.deepcopy(config), attention_options, seed)
    except Exception:  # a Hub kernel's author decides the exceptions while it is loaded
        _forget_loaded_implementation()
        raise
    _sharpen_sinks(model, seed)
    return prepare_for_training(model, dtype, device)


_width_sets_head_dim_cache: dict[tuple[str, int], bool] = {}  # by the model's name and vocabulary size


def _forget_loaded_implementation() -> None:
    """Make transformers load an implementation again, so that the next model raises the same error as this one.

    5.17.0 marks one as loaded before it loads it (modeling_flash_attention_utils.py `lazy_import_flash_attention`);
    another model would fail at its first call.
    """
    from transformers import modeling_flash_attention_utils

    if hasattr(modeling_flash_attention_utils, "_loaded_implementation"):
        modeling_flash_attention_utils._loaded_implementation = None


def _width_sets_head_dim(transformers: Any, source: Architecture, config: Any) -> bool:
    """Return whether the class derives head_dim from the hidden size.

    A smaller hidden size then changes the heads or fails.
    """
    key = (source.name, source.vocabulary_size)
    if key not in _width_sets_head_dim_cache:
        try:
            model = _instantiate_model(transformers, _reread(config), {"attn_implementation": "eager"}, 0)
            run_once(model)
            _width_sets_head_dim_cache[key] = not has_configured_heads(model, config)
        except Exception as error:  # a class may raise anything for sizes that do not fit
            uncut_error = _run_uncut(source)  # the same error without the cut is not caused by the width
            is_same = uncut_error is not None and describe_error(uncut_error) == describe_error(error)
            _width_sets_head_dim_cache[key] = not is_same
    return _width_sets_head_dim_cache[key]


def _reread(config: Any) -> Any:
    """Return a configuration as it is read again after saving: its class may recompute fields from others."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        config.to_json_file(path)
        return type(config).from_json_file(path)


def run_once(model: Any) -> None:
    """Run a model forward on a row of four tokens. Raises its class's own errors."""
    tokens = torch.zeros(1, 4, dtype=torch.long, device=model.device)
    # On the meta device transformers cannot read whether positions are packed documents'; with a mask it does not try.
    mask = {"attention_mask": torch.ones_like(tokens)} if tokens.is_meta else {}
    with torch.no_grad():
        model(input_ids=tokens, use_cache=False, **mask)


def _can_be_made(transformers: Any, config: Any, seed: int) -> bool:
    """Return whether a class accepts so few heads: codegen needs four."""
    try:
        run_once(_instantiate_model(transformers, _reread(config), {"attn_implementation": "eager"}, seed))
    except Exception:  # the class may raise anything
        return False
    return True


def check_cut(source: Architecture, model: nn.Module) -> None:
    """Raise `Unbuildable` if a small model does not run and the full-size one would: scaling down is at fault."""
    try:
        run_once(model)
    except Exception as error:  # the class may raise anything
        if _run_uncut(source) is None:
            raise Unbuildable(_blame_cut(source, error)) from None


def explain_failure(source: Architecture, error: Exception) -> str:
    """Return a line that blames scaling down. Raises `Unbuildable` if the configuration itself is at fault."""
    _run_uncut(source)
    return _blame_cut(source, error)


def _blame_cut(source: Architecture, error: Exception) -> str:
    return f"smoke cannot scale {source.name} down: {describe_error(error)}; --full-model uses the unchanged model"


def _run_uncut(source: Architecture) -> Exception | None:
    """Return the full-size model's error when it runs on the meta device; None if it runs.

    Raises `Unbuildable` if no model can be built from its configuration. Some models cannot run without memory.
    """
    import transformers

    config = select_buildable_config(read_full_config(source))
    try:
        with torch.device("meta"):
            model = _instantiate_model(transformers, config, {"attn_implementation": "eager"}, 0)
    except Exception as error:
        if "meta" in str(error):
            return error
        repair = "install it" if isinstance(error, ImportError) else "correct its config.json"
        raise Unbuildable(
            f"transformers {transformers.__version__} cannot build a language model from "
            f"{source.name}'s configuration: {describe_error(error)}; {repair}, or name another model"
        ) from None
    try:
        run_once(model)
    except Exception as error:  # the class may raise anything
        return error
    return None


def prepare_for_training(model: Any, dtype: torch.dtype, device: Any) -> nn.Module:
    """Return the model in a precision on a device, in train mode, with every dropout and jitter off."""
    prepared: nn.Module = model.to(dtype).to(device).train()
    switch_off_randomness(prepared)
    return prepared


def _instantiate_model(transformers: Any, config: Any, attention_options: dict[str, str], seed: int) -> Any:
    torch.manual_seed(seed)
    is_causal_lm = type(config) in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    auto_class = transformers.AutoModelForCausalLM if is_causal_lm else transformers.AutoModelForImageTextToText
    return auto_class.from_config(config, **attention_options)


def find_readable_config(source: Architecture, model: Any) -> Any:
    """Return the configuration from which a model is read; for emu3 and mllama the given one is only part of it."""
    import transformers

    auto_models = transformers.models.auto.modeling_auto
    names = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING")
    if any(type(model.config) in getattr(auto_models, name, {}) for name in names):
        return model.config
    config = read_full_config(source)
    config.text_config = model.config
    return config


def _sharpen_sinks(model: Any, seed: int) -> None:
    """Set attention sinks to values with an effect: transformers may leave them uninitialised."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".sinks"):
            parameter.data.copy_(1.0 + torch.randn(parameter.shape, generator=generator))


def leave_out(*packages: str) -> None:
    """Keep transformers from importing packages that only its other models use; call it before it is imported."""
    for name in packages:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def stay_offline() -> None:
    """Keep transformers from contacting the Hub; call it before transformers is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
