"""Cuts a model's configuration small, and keeps what decides its attention.

Kept are heads, kv heads (but in `cut_heads`), head_dim, MLA's ranks, every kind of layer, windows (made shorter than a
document), soft-caps, sinks, position embeddings. Cut are the layers' number, the hidden size where the heads do not
follow from it, the vocabulary, towers for images and sound, and the experts, all of which are then used, so that
rounding cannot choose others.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from typing import Any

from attncheck.smoke.worker.models.architectures import SHAPES, WINDOW, Architecture, Unbuildable

MAX_HIDDEN_SIZE = 256  # where the heads' size does not follow from it
MAX_LAYERS = 6
EXPERT_COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERTS_PER_TOKEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k")
KEPT_EXPERTS = 4
IDENTITY_EXPERTS_FIELD = "zero_expert_num"  # longcat_flash's: chosen from beside the others
TOWER_FIELDS = ("vision_config", "audio_config")


def shrink_config(source: Architecture, max_tokens: int) -> Any:
    """Return a model's configuration, cut small, as transformers' own object. Raises `Unbuildable`."""
    import transformers

    document = _strip_custom_code(source.document)
    model_type = document.get("model_type", "")
    try:
        full_config = transformers.CONFIG_MAPPING[model_type].from_dict(document)
    except KeyError:
        has_code = bool(source.document.get("auto_map"))
        remote_code = " and brings its own code, which attncheck never runs" if has_code else ""
        raise Unbuildable(
            f"transformers {transformers.__version__} does not know model_type {model_type!r}{remote_code}; "
            "install a transformers that does, or name another model"
        ) from None
    decoder, buildable = decoder_config(full_config), _select_buildable_config(transformers, full_config)
    if source.document is SHAPES.get(source.name):
        _set_common_fields(decoder, max_tokens, source)
        return buildable
    layer_overrides = _take_layer_overrides(decoder)
    if not hasattr(decoder, "hidden_size"):
        raise Unbuildable(f"smoke cannot cut a {type(decoder).__name__} small: it has no decoder's sizes")
    kept_layers = _cut_layers(decoder)
    _cut_experts(decoder)
    if getattr(decoder, "head_dim", None) is None and not hasattr(decoder, "qk_nope_head_dim"):
        heads = getattr(decoder, "num_attention_heads", 0)
        if heads:
            set_number(decoder, "head_dim", decoder.hidden_size // heads, even_if_absent=True)
    decoder.cut_from_hidden = decoder.hidden_size
    if decoder.hidden_size > MAX_HIDDEN_SIZE:
        decoder.hidden_size = MAX_HIDDEN_SIZE
    for name in ("intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size"):
        set_number(decoder, name, 2 * decoder.hidden_size)
    for name in ("moe_intermediate_size", "expert_ffn_hidden_size"):
        set_number(decoder, name, decoder.hidden_size // 2)
    set_number(decoder, "vocab_size_per_layer_input", source.vocabulary_size)
    window = getattr(decoder, "sliding_window", None)
    if isinstance(window, int) and window > WINDOW:
        decoder.sliding_window = WINDOW
    for name in TOWER_FIELDS:
        _cut_tower(getattr(buildable, name, None))
    _set_common_fields(decoder, max_tokens, source)
    if layer_overrides:
        decoder.per_layer_config = {
            index: layer_overrides[layer] for index, layer in enumerate(kept_layers) if layer in layer_overrides
        }
    return buildable


def _take_layer_overrides(config: Any) -> dict[int, dict[str, Any]]:
    """Return the fields that single layers have of their own, by the layer's number, and take them out.

    gemma4 has them; while they are in, the configuration refuses to give such a field's common value.
    """
    overrides = config.to_dict().get("per_layer_config") or {}
    if overrides:
        config.per_layer_config = None
    return {int(layer): dict(fields) for layer, fields in overrides.items()}


def decoder_config(config: Any) -> Any:
    """Return the decoder's part of a configuration; the configuration itself where it has no parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _select_buildable_config(transformers: Any, full_config: Any) -> Any:
    """Return the decoder's configuration where a causal model takes it, else the full one. Raises `Unbuildable`."""
    auto_models = transformers.models.auto.modeling_auto
    for config in (decoder_config(full_config), full_config):
        if type(config) in auto_models.MODEL_FOR_CAUSAL_LM_MAPPING:
            return config
    if type(full_config) in getattr(auto_models, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", {}):
        return full_config
    raise Unbuildable(
        f"transformers {transformers.__version__} has no causal language model for {full_config.model_type}; "
        "smoke trains those only"
    )


def _cut_tower(config: Any) -> None:
    """Keep one layer of a vision or audio tower, which no text enters."""
    for name in ("depth", "num_hidden_layers", "encoder_layers"):
        set_number(config, name, 1)
    if config is not None and isinstance(getattr(config, "fullatt_block_indexes", None), list):
        config.fullatt_block_indexes = [0]


def _set_common_fields(config: Any, max_tokens: int, source: Architecture) -> None:
    config.vocab_size = source.vocabulary_size
    for name, token in (
        ("pad_token_id", source.pad_token_id),
        ("bos_token_id", source.pad_token_id - 1),
        ("eos_token_id", source.pad_token_id - 2),
    ):
        setattr(config, name, token)
    if (getattr(config, "max_position_embeddings", None) or max_tokens) < max_tokens:
        config.max_position_embeddings = max_tokens


def _strip_custom_code(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without the fields that ask for code, kernels or quantisation packages of their own."""
    dropped = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
    copied: dict[str, Any] = json.loads(json.dumps(dict(document)))
    for level in (copied, *(value for value in copied.values() if isinstance(value, dict))):
        for name in dropped:
            level.pop(name, None)
    return copied


def _cut_layers(config: Any) -> list[int]:
    """Keep a few layers, every kind of them, and cut all lists that have one entry for each layer; return which.

    Of hybrid layers two are kept, as zamba's share their weights.
    """
    layer_count = int(getattr(config, "num_hidden_layers", 2))
    layer_types = list(getattr(config, "layer_types", None) or [])
    wanted = {kind: min(2, layer_types.count(kind)) if kind == "hybrid" else 1 for kind in layer_types}
    first = [i for i, kind in enumerate(layer_types) if layer_types[:i].count(kind) < wanted[kind]]
    keep = list(range(min(layer_count, max([1, *first]) + 1)))
    if len(keep) > MAX_LAYERS:  # the first of each kind
        keep = first
    for name, value in list(vars(config).items()):
        if not isinstance(value, list):
            continue
        if name.endswith(("layer_ids", "layer_indices")):  # numbers of layers
            setattr(config, name, [keep.index(layer) for layer in value if layer in keep])
        elif len(value) == layer_count and layer_count > 2:
            setattr(config, name, [value[index] for index in keep])
    counts_pairs = getattr(config, "num_layers", None) == layer_count / 2  # longcat_flash's layers hold two each
    config.num_hidden_layers = len(keep)
    if counts_pairs:
        config.num_layers = max(1, len(keep) // 2)
    set_number(config, "num_kv_shared_layers", 0)  # gemma3n's and gemma4's count back from the last layer
    for name in ("first_k_dense_replace", "num_nextn_predict_layers"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            setattr(config, name, min(value, 1 if name.startswith("first") else 0))
    return keep


def _cut_experts(config: Any) -> None:
    """Keep at most KEPT_EXPERTS experts and route every token to all of them."""
    for name in EXPERT_COUNT_FIELDS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 0:
            kept = min(count, KEPT_EXPERTS)
            setattr(config, name, kept)
            set_number(config, IDENTITY_EXPERTS_FIELD, min(getattr(config, IDENTITY_EXPERTS_FIELD, None) or 0, 1))
            for per_token in EXPERTS_PER_TOKEN_FIELDS:
                set_number(config, per_token, kept + (getattr(config, IDENTITY_EXPERTS_FIELD, None) or 0))
            for group in ("n_group", "topk_group"):
                set_number(config, group, 1)


def set_number(config: Any, name: str, value: Any, even_if_absent: bool = False) -> None:
    """Set a field of a configuration where it holds a number already, or in any case with `even_if_absent`."""
    if even_if_absent or isinstance(getattr(config, name, None), (int, float)):
        setattr(config, name, value)


def widen_config(config: Any) -> Any:
    """Return the configuration with the hidden size that the heads need, where the class derives head_dim from it."""
    wide = copy.deepcopy(config)
    decoder = decoder_config(wide)
    decoder.hidden_size = getattr(decoder, "cut_from_hidden", decoder.hidden_size)
    return wide


def cut_heads(config: Any) -> Any:
    """Return the configuration with as many heads as fit MAX_HIDDEN_SIZE, each as wide as the model's own.

    A width that stays whole, 4544 in falcon's, makes a model that neither is small nor learns at a small one's rate.
    """
    narrow = widen_config(config)
    decoder = decoder_config(narrow)
    heads = int(decoder.num_attention_heads)
    head_dim = decoder.hidden_size // heads
    kept = max(1, MAX_HIDDEN_SIZE // head_dim)
    if kept >= heads:
        return narrow
    decoder.num_attention_heads, decoder.hidden_size = kept, kept * head_dim
    for name in ("num_key_value_heads", "num_kv_heads"):
        groups = getattr(decoder, name, None)
        if isinstance(groups, int) and groups:
            set_number(decoder, name, math.gcd(kept, max(1, groups * kept // heads)))
    set_number(decoder, "word_embed_proj_dim", decoder.hidden_size)  # opt's
    return narrow


def has_configured_heads(model: Any, config: Any) -> bool:
    """Say whether q's projection is as wide as the configuration's heads × head_dim."""
    config = decoder_config(config)
    if getattr(config, "is_heterogeneous", False):
        return True  # its layers have head sizes of their own, written out
    head_dim = getattr(config, "head_dim", None)
    for name, module in model.named_modules():
        if head_dim and name.endswith(".q_proj") and hasattr(module, "out_features"):
            width = config.num_attention_heads * head_dim
            return bool(module.out_features in (width, 2 * width))  # qwen3_next's also holds a gate
    return True
