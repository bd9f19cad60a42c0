"""Cuts a model's configuration small, and keeps what decides its attention.

Kept are heads, kv heads, head_dim, MLA's ranks, every kind of layer, windows (made shorter than a document), soft-caps,
sinks, position embeddings. Cut are the layers' number, the hidden size where the heads do not follow from it, the
vocabulary, towers for images and sound, and the experts, all of which are then used, so that rounding cannot choose
others.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from attncheck.smoke.worker.models.architectures import SHAPES, WINDOW, Architecture, Unbuildable

HIDDEN = 256  # where heads do not follow from it
MOST_LAYERS = 6
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k")
KEPT_EXPERTS = 4
TOWERS = ("vision_config", "audio_config")


def configuration(source: Architecture, longest: int) -> Any:
    """Return the cut configuration as transformers' own object. Raises `Unbuildable`."""
    import transformers

    document = _plain(source.document)
    kind = document.get("model_type", "")
    try:
        whole = transformers.CONFIG_MAPPING[kind].from_dict(document)
    except KeyError:
        own = " and brings its own code, which attncheck never runs" if source.document.get("auto_map") else ""
        raise Unbuildable(
            f"transformers {transformers.__version__} does not know model_type {kind!r}{own}; "
            "install a transformers that does, or name another model"
        ) from None
    config, built = text_of(whole), _buildable(transformers, whole)
    if source.document is SHAPES.get(source.name):
        _finish(config, longest, source)
        return built
    _cut_layers(config)
    _cut_experts(config)
    if getattr(config, "head_dim", None) is None and not hasattr(config, "qk_nope_head_dim"):
        heads = getattr(config, "num_attention_heads", 0)
        if heads:
            set_where(config, "head_dim", config.hidden_size // heads, even_if_absent=True)
    config.cut_from_hidden = config.hidden_size
    if config.hidden_size > HIDDEN:
        config.hidden_size = HIDDEN
    for name in ("intermediate_size", "shared_expert_intermediate_size"):
        set_where(config, name, 2 * config.hidden_size)
    set_where(config, "moe_intermediate_size", config.hidden_size // 2)
    set_where(config, "vocab_size_per_layer_input", source.vocabulary)
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and window > WINDOW:
        config.sliding_window = WINDOW
    for name in TOWERS:
        _cut_tower(getattr(built, name, None))
    _finish(config, longest, source)
    return built


def text_of(config: Any) -> Any:
    """Return the part of a configuration that is the decoder's; the whole where it has no parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _buildable(transformers: Any, whole: Any) -> Any:
    """Return the decoder's configuration where that makes a model, else the whole. Raises `Unbuildable`."""
    known = transformers.models.auto.modeling_auto
    for config in (text_of(whole), whole):
        if type(config) in known.MODEL_FOR_CAUSAL_LM_MAPPING:
            return config
    if type(whole) in getattr(known, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", {}):
        return whole
    raise Unbuildable(
        f"transformers {transformers.__version__} has no causal language model for {whole.model_type}; "
        "smoke trains those only"
    )


def _cut_tower(config: Any) -> None:
    """Leave one layer of a tower, which no text enters."""
    for name in ("depth", "num_hidden_layers", "encoder_layers"):
        set_where(config, name, 1)
    if config is not None and isinstance(getattr(config, "fullatt_block_indexes", None), list):
        config.fullatt_block_indexes = [0]


def _finish(config: Any, longest: int, source: Architecture) -> None:
    config.vocab_size = source.vocabulary
    for name in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"):
        set_where(config, name, 0.0)
    for name, token in (
        ("pad_token_id", source.pad),
        ("bos_token_id", source.pad - 1),
        ("eos_token_id", source.pad - 2),
    ):
        setattr(config, name, token)
    if (getattr(config, "max_position_embeddings", None) or longest) < longest:
        config.max_position_embeddings = longest


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without what would ask for code, kernels or quantisation packages of their own."""
    dropped = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
    copied: dict[str, Any] = json.loads(json.dumps(dict(document)))
    for level in (copied, *(value for value in copied.values() if isinstance(value, dict))):
        for name in dropped:
            level.pop(name, None)
    return copied


def _cut_layers(config: Any) -> None:
    """Keep a few layers, every kind of them, and cut all lists that have one entry for each layer."""
    total = int(getattr(config, "num_hidden_layers", 2))
    kinds = list(getattr(config, "layer_types", None) or [])
    wanted = next((n for n in range(2, total + 1) if set(kinds[:n]) == set(kinds)), 2)
    keep = list(range(min(total, wanted)))
    if len(keep) > MOST_LAYERS:  # the first of each kind
        keep = sorted({kinds.index(kind) for kind in kinds})
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == total and total > 2:
            setattr(config, name, [value[index] for index in keep])
    config.num_hidden_layers = len(keep)
    set_where(config, "num_kv_shared_layers", 0)  # gemma3n's and gemma4's count back from the last layer
    for name in ("first_k_dense_replace", "num_nextn_predict_layers"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            setattr(config, name, min(value, 1 if name.startswith("first") else 0))


def _cut_experts(config: Any) -> None:
    """Keep few experts and use them all."""
    for name in EXPERTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 0:
            setattr(config, name, min(count, KEPT_EXPERTS))
            for per_token in PER_TOKEN:
                set_where(config, per_token, min(count, KEPT_EXPERTS))
            for group in ("n_group", "topk_group"):
                set_where(config, group, 1)


def set_where(config: Any, name: str, value: Any, even_if_absent: bool = False) -> None:
    """Set a number of a configuration that has it."""
    if even_if_absent or isinstance(getattr(config, name, None), (int, float)):
        setattr(config, name, value)


def widened(config: Any) -> Any:
    """Return the configuration with the hidden size that the heads need, where the class derives head_dim from it."""
    wide = copy.deepcopy(config)
    text = text_of(wide)
    text.hidden_size = getattr(text, "cut_from_hidden", text.hidden_size)
    return wide


def heads_kept(model: Any, config: Any) -> bool:
    """Say whether q's projection is as wide as heads × head_dim ask."""
    config = text_of(config)
    wanted = getattr(config, "head_dim", None)
    for name, module in model.named_modules():
        if wanted and name.endswith(".q_proj") and hasattr(module, "out_features"):
            width = config.num_attention_heads * wanted
            return bool(module.out_features in (width, 2 * width))  # qwen3_next's also holds a gate
    return True
