"""Determines what each layer of a model attends to: everything, a window, a chunk, or a recurrent state.

Read in transformers 5.23.0 and 4.57.3, models/*/configuration_*.py: gemma2 and gpt_oss (odd layers full), gemma3 and
cohere2 (`sliding_window_pattern`: every n-th layer full), qwen2 (`use_sliding_window`, starting at layer
`max_window_layers`), llama4 (`no_rope_layers`, `attention_chunk_size`), qwen3_next (`full_attention_interval`), jamba
(`attn_layer_period`, `attn_layer_offset`), bamba (`attn_layer_indices`), nemotron_h (`hybrid_override_pattern`),
kimi_linear (`linear_attn_config`), lfm2 (`full_attn_idxs`), recurrent_gemma (`block_types`), gpt_neo
(`attention_layers`), minimax (`attn_type_list`).
"""

from __future__ import annotations

from typing import Any

from ..facts import absent
from .values import as_int_list, as_object, as_str_list, known_value, read_bool, read_int

MAX_LAYERS = 4096
_LAYER_TYPE_NAMES = {"attention": "full_attention", "global": "full_attention", "local": "sliding_attention"}
_PATTERN_LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_RECURRENT = frozenset(["mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"])
_ALTERNATING = frozenset(["gemma2", "vaultgemma", "gpt_oss", "t5gemma"])
_WINDOWED = ("sliding_attention", "hybrid_sliding")


def derive_layer_fields(document: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Return the fields num_layers, layer_types, sliding_window and attention_chunk_size of the text part."""
    num_layers = read_int(document, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    layer_types = _layer_types(document, model_type, min(known_value(num_layers, 0), MAX_LAYERS))
    window = _sliding_window(document)
    if "known" in window and layer_types and not any(kind in _WINDOWED for kind in layer_types):
        window = absent("no layer uses it")
    chunk = read_int(document, "attention_chunk_size")
    if "known" in chunk and layer_types and "chunked_attention" not in layer_types:
        chunk = absent("no layer uses it")
    return {
        "num_layers": num_layers,
        "layer_types": layer_types,
        "sliding_window": window,
        "attention_chunk_size": chunk,
    }


def _sliding_window(document: dict[str, Any]) -> dict[str, Any]:
    if known_value(read_bool(document, "use_sliding_window")) is False:
        return absent("use_sliding_window is false")
    for name in ("sliding_window", "sliding_window_size", "attention_window_size", "window_size", "local_attention"):
        if document.get(name) in (0, -1, False) or document.get(name) is None:
            continue
        return read_int(document, name)
    return absent("config.json gives no window")


def _layer_types(document: dict[str, Any], model_type: str, layers: int) -> list[str]:
    if model_type in _RECURRENT:
        return ["mamba"] * layers
    for name in ("layer_types", "layers_block_type", "attention_layers"):
        stated = as_str_list(document.get(name), MAX_LAYERS)
        if stated:
            return [_LAYER_TYPE_NAMES.get(kind, kind) for kind in stated]
    return _hybrid_layers(document, model_type, layers) or _windowed_layers(document, model_type, layers)


def _hybrid_layers(document: dict[str, Any], model_type: str, layers: int) -> list[str]:
    """Return the layers of a model that mixes attention with recurrent layers; empty for other models."""
    pattern = document.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [_PATTERN_LETTERS.get(letter, "mlp") for letter in pattern[:MAX_LAYERS]]
    if model_type == "falcon_h1":
        return ["hybrid"] * layers
    full = _full_layers(document, model_type, layers)
    if full is None:
        return _repeat_block_types(document, layers)
    other = "mamba" if model_type in ("jamba", "bamba") else "conv" if model_type == "lfm2" else "linear_attention"
    return ["full_attention" if index in full else other for index in range(layers)]


def _full_layers(document: dict[str, Any], model_type: str, layers: int) -> Any:
    """Return the numbers of the layers with attention; None if the configuration names none."""
    interval = known_value(read_int(document, "full_attention_interval"))
    if interval:
        return range(interval - 1, layers, interval)
    period = known_value(read_int(document, "attn_layer_period"))
    if period and model_type == "jamba":
        return range(known_value(read_int(document, "attn_layer_offset", minimum=0), 0), layers, period)
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if as_int_list(document.get(name)):
            return set(document[name])
    numbers = as_int_list(as_object(document.get("linear_attn_config")).get("full_attn_layers"))
    if numbers:
        return {index - 1 for index in numbers}  # kimi_linear counts from 1
    kinds = as_int_list(document.get("attn_type_list"))
    return {index for index, kind in enumerate(kinds) if kind == 1} if kinds else None


def _repeat_block_types(document: dict[str, Any], layers: int) -> list[str]:
    blocks = as_str_list(document.get("block_types"))
    names = {"recurrent": "linear_attention", "attention": "sliding_attention"}
    return [names.get(blocks[index % len(blocks)], "full_attention") for index in range(layers)] if blocks else []


def _windowed_layers(document: dict[str, Any], model_type: str, layers: int) -> list[str]:
    """Return the layers of a model with attention in every layer, some of it windowed or chunked."""
    chunked = as_int_list(document.get("no_rope_layers"))
    if "attention_chunk_size" in document and known_value(read_int(document, "attention_chunk_size")):
        return [
            "chunked_attention" if (chunked[index] if index < len(chunked) else (index + 1) % 4) else "full_attention"
            for index in range(layers)
        ]
    if "known" not in _sliding_window(document):
        return ["full_attention"] * layers
    is_full = _full_layer_predicate(document, model_type)
    return ["full_attention" if is_full(index) else "sliding_attention" for index in range(layers)]


def _full_layer_predicate(document: dict[str, Any], model_type: str) -> Any:
    period = known_value(read_int(document, "sliding_window_pattern", "_sliding_window_pattern"))
    letters = document.get("sliding_window_pattern")
    interval = known_value(read_int(document, "global_attn_every_n_layers"))
    first_windowed = known_value(read_int(document, "max_window_layers", minimum=0))
    if isinstance(letters, str) and letters:  # exaone4: "LLLG"
        return lambda index: letters[index % len(letters)] == "G"
    if period is None and model_type in ("gemma3", "gemma3_text", "gemma4", "gemma4_text"):
        period = 6
    if period:
        return lambda index: (index + 1) % period == 0
    if interval:  # modernbert
        return lambda index: index % interval == 0
    if model_type in _ALTERNATING:
        return lambda index: index % 2 == 1
    if first_windowed is not None and known_value(read_bool(document, "use_sliding_window")) is True:
        return lambda index: index < first_windowed
    return lambda index: False
