"""Small decoders of transformers' own classes: a plain one, one with a sliding window, one with sinks.

They are made from configurations and a seed; nothing is downloaded and no remote code runs. Weights are larger than
usual, so that attention is not nearly uniform and the visible tokens matter. The model with sinks uses all its experts,
so that rounding cannot choose others.
"""

from collections.abc import Iterator
from typing import Any

import torch

from attncheck.attention.device import describe_exception
from attncheck.core.results.hf_adapter import HOOKED_IMPLEMENTATION, WINDOW_BY_SHAPE, Shape

VOCABULARY = 64
SEED = 7
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
}


def select_model(
    shape: Shape, implementation: str, dtype: torch.dtype, device: Any, emulated: bool
) -> tuple[Any, str, str]:
    """Return the model with the implementation, how that was set, and why it cannot be set ("": it is).

    transformers allows flash_attention_2 only if flash-attn is installed, and not for a model with sinks. In these
    cases it is written into the configuration after construction, as a training script can do.
    """
    import transformers.modeling_utils

    if shape == "sinks" and not hasattr(transformers, "GptOssConfig"):
        return None, "", f"transformers {transformers.__version__} has no model with sinks"
    refusal = ""
    if not (emulated and implementation == HOOKED_IMPLEMENTATION):
        try:
            model = make_model(shape, implementation, dtype, device)
            actual = model.config._attn_implementation
            return model, "" if actual == implementation else f"transformers made it {actual}", ""
        except (ImportError, ValueError, OSError, RuntimeError) as error:
            refusal = describe_exception(error)
            if implementation != HOOKED_IMPLEMENTATION or shape != "sinks":
                return None, "", refusal
    if not hasattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS"):
        return None, "", f"transformers {transformers.__version__} chooses the attention's class at construction only"
    model = make_model(shape, "eager", dtype, device)
    model.config._attn_implementation = implementation
    reason = refusal or "flash-attn is emulated"
    return model, f"written into the configuration after construction ({reason})", ""


def make_eager_model(shape: Shape, dtype: torch.dtype, device: Any) -> Any:
    """Return the model with transformers' eager attention."""
    return make_model(shape, "eager", dtype, device)


def iter_damaged_models(shape: Shape, dtype: torch.dtype, device: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part of a model that an adapter may drop, described, and the model without it."""
    if shape in WINDOW_BY_SHAPE:
        yield "without its window", make_model(shape, "eager", dtype, device, sliding_window=None)
        wider_window = WINDOW_BY_SHAPE[shape] + 1
        yield "with a window one token wider", make_model(shape, "eager", dtype, device, sliding_window=wider_window)
    elif shape == "sinks":
        model = make_model(shape, "eager", dtype, device)
        for layer in model.model.layers:
            layer.self_attn.sinks.data.fill_(-1e4)  # fits bfloat16 and float16; e^-10000 is zero
        yield "without its sinks", model


def make_model(shape: Shape, implementation: str, dtype: torch.dtype, device: Any, **changes: Any) -> Any:
    """Return a model in eval mode; a shape always gets the same weights, with any `changes` of its configuration."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(_make_config(shape, changes), attn_implementation=implementation)
    if shape == "sinks":
        generator = torch.Generator().manual_seed(SEED)
        for layer in model.model.layers:
            sinks = layer.self_attn.sinks.data
            sinks.copy_(1.0 + torch.randn(sinks.shape, generator=generator))
    return model.to(dtype).to(device).eval()


def _make_config(shape: Shape, changes: dict[str, Any]) -> Any:
    import transformers

    if shape == "plain":
        return transformers.LlamaConfig(**SIZES)
    if shape in WINDOW_BY_SHAPE:
        return transformers.MistralConfig(**{**SIZES, "sliding_window": WINDOW_BY_SHAPE[shape], **changes})
    experts = {"num_local_experts": 2, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2}
    return transformers.GptOssConfig(**{**SIZES, **experts, **changes})
