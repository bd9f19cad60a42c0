"""Scales a model's configuration down, and keeps everything that affects its attention.

It keeps heads, kv heads (except in `iter_fewer_heads`), head_dim, MLA's ranks, every kind of layer, windows (made
shorter than a document), soft-caps, sinks and position embeddings. It reduces the number of layers, the hidden size if
the heads do not follow from it, state spaces along with it, the heads of linear attention, the vocabulary, towers for
images and sound, and the experts. All remaining experts are used, so that rounding cannot choose others.
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from attncheck.smoke.worker.models.architectures import SHAPES, WINDOW, Architecture, Unbuildable
from attncheck.smoke.worker.models.fitting import (
    TOWER_FIELDS,
    describe_error,
    fit_validators,
    iter_parts,
    set_fields,
    set_hidden_size,
    set_number,
)

MAX_HIDDEN_SIZE = 256  # if the heads' size does not follow from it
MAX_LAYERS = 6
EXPERT_COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
SAMPLING = ("top_k", 50)  # before transformers 5 a parameter of generation (4.57.3 configuration_utils.py:1127)
EXPERTS_PER_TOKEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k")
KEPT_EXPERTS = 4
HEAD_FIELDS = ("num_attention_heads", "decoder_attention_heads", "encoder_attention_heads")
KV_HEAD_FIELDS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
LINEAR_HEAD_FIELDS = ("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads")
KEPT_LINEAR_HEADS = 2  # with those of the models, qwen3_next has 19 million weights instead of 8, and all are compared
IDENTITY_EXPERTS_FIELD = "zero_expert_num"  # longcat_flash's: chosen in addition to the others
NGRAM_ROWS = 512  # rows of each hashed n-gram table: qwen4_exp's have 20 million
# In addition to num_hidden_layers: each of longcat_flash's layers has two, hrm_text runs each of a stack several times.
LAYER_COUNT_FIELDS = ("num_layers", "num_layers_per_stack", "num_blocks")
CHUNK_FIELDS = ("chunk_size", "mamba_chunk_size")  # of state spaces
STATE_FIELDS = ("state_size", "ssm_state_size", "mamba_d_state")
# Without its kernels, mamba2's time and memory are proportional to each.
MAX_CHUNK = 64  # tokens
MAX_STATE = 32


def shrink_config(source: Architecture, max_tokens: int) -> Any:
    """Return a model's configuration, scaled down, as transformers' own object. Raises `Unbuildable`."""
    full_config = read_full_config(source)
    return _shrink(source, full_config, select_buildable_config(full_config), max_tokens)


def shrink_full_config(source: Architecture, max_tokens: int) -> Any:
    """Return a multimodal model's whole configuration, its text part scaled down. Raises `Unbuildable`."""
    full_config = read_full_config(source)
    return _shrink(source, full_config, full_config, max_tokens)


def _shrink(source: Architecture, full_config: Any, buildable: Any, max_tokens: int) -> Any:
    decoder = decoder_config(full_config)
    if source.document is SHAPES.get(source.name):
        _set_common_fields(decoder, max_tokens, source)
        return buildable
    layer_overrides = _take_layer_overrides(decoder)
    if not hasattr(decoder, "hidden_size"):
        raise Unbuildable(f"smoke cannot scale a {type(decoder).__name__} down: it has no decoder sizes")
    kept_layers = _cut_layers(decoder)
    routing = {name: value for name in EXPERTS_PER_TOKEN_FIELDS if (value := getattr(decoder, name, None))}
    for part in iter_parts(decoder):
        _cut_experts(part)
    if getattr(decoder, "head_dim", None) is None and not hasattr(decoder, "qk_nope_head_dim"):
        heads = getattr(decoder, "num_attention_heads", 0)
        if heads:
            set_number(decoder, "head_dim", decoder.hidden_size // heads, even_if_absent=True)
    decoder.cut_from = {}
    if decoder.hidden_size > MAX_HIDDEN_SIZE:
        decoder.cut_from = set_hidden_size(decoder, MAX_HIDDEN_SIZE)
    for part in iter_parts(decoder):
        for name in ("intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size"):
            set_number(part, name, 2 * decoder.hidden_size)
    linear_heads = {name: count for name in LINEAR_HEAD_FIELDS if (count := getattr(decoder, name, None))}
    for name, count in linear_heads.items():
        setattr(decoder, name, count * KEPT_LINEAR_HEADS // max(KEPT_LINEAR_HEADS, min(linear_heads.values())))
    for name in ("moe_intermediate_size", "expert_ffn_hidden_size"):
        set_number(decoder, name, decoder.hidden_size // 2)
    set_number(decoder, "vocab_size_per_layer_input", source.vocabulary_size)
    set_number(decoder, "ngram_vocab_size_base", NGRAM_ROWS)
    for names, most in ((CHUNK_FIELDS, MAX_CHUNK), (STATE_FIELDS, MAX_STATE)):
        for name in names:
            set_number(decoder, name, min(getattr(decoder, name, None) or 0, most))
    window = getattr(decoder, "use_sliding_window", True) and getattr(decoder, "sliding_window", None)
    # transformers 4.49.0 modeling_qwen2.py: without flash-attn a window that is not used hides tokens anyway
    if isinstance(window, int) and window > WINDOW:
        decoder.sliding_window = WINDOW
    for name in TOWER_FIELDS:
        _cut_tower(getattr(buildable, name, None))
    _set_common_fields(decoder, max_tokens, source)
    if layer_overrides:
        decoder.per_layer_config = {
            index: layer_overrides[layer] for index, layer in enumerate(kept_layers) if layer in layer_overrides
        }
    corrections = (lambda: _round_hidden_size(decoder), lambda: _route_as_before(decoder, routing))
    fit_validators((decoder, buildable), decoder, corrections)
    return buildable


def read_full_config(source: Architecture) -> Any:
    """Return a model's full-size configuration as transformers' own object. Raises `Unbuildable`."""
    import transformers

    document = _strip_custom_code(source.document)
    model_type = document.get("model_type", "")
    try:
        config_class = transformers.CONFIG_MAPPING[model_type]
    except KeyError:
        has_code = bool(source.document.get("auto_map"))
        remote_code = " and has its own code, which attncheck never runs" if has_code else ""
        raise Unbuildable(
            f"transformers {transformers.__version__} does not know model_type {model_type!r}{remote_code}; "
            "install a transformers that does, or name another model"
        ) from None
    try:
        return config_class.from_dict(document)
    except Exception as error:  # the class decides the type of the exception
        raise Unbuildable(
            f"transformers {transformers.__version__} refuses the configuration of {source.name}: "
            f"{describe_error(error)}; correct its config.json"
        ) from None


def _round_hidden_size(config: Any) -> dict[str, Any]:
    """Make the hidden size a multiple of the heads, and of 16 if possible; return the old fields."""
    heads = int(getattr(config, "num_attention_heads", 0) or 1)
    multiple = math.lcm(heads, 16) if math.lcm(heads, 16) <= MAX_HIDDEN_SIZE else heads
    return set_hidden_size(config, max(multiple, config.hidden_size // multiple * multiple))


def _route_as_before(config: Any, routing: dict[str, Any]) -> dict[str, Any]:
    """Route each token to as many experts as the full model does, and keep only those; return the old fields.

    zaya routes to one, and supports no other number.
    """
    kept = next(iter(routing.values()), 1)
    counts = {name: kept for name in EXPERT_COUNT_FIELDS if getattr(config, name, None)}
    return set_fields(config, {**counts, **routing})


def _take_layer_overrides(config: Any) -> dict[int, dict[str, Any]]:
    """Remove the fields that single layers override from the configuration; return them by layer number.

    gemma4 has them; while they are present, the configuration refuses to return such a field's common value.
    """
    overrides = config.to_dict().get("per_layer_config") or {}
    if overrides:
        config.per_layer_config = None
    return {int(layer): dict(fields) for layer, fields in overrides.items()}


def decoder_config(config: Any) -> Any:
    """Return the decoder's part of a configuration; the configuration itself if it has no parts."""
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config()
    except ValueError:  # musicgen also has a text encoder
        return config.get_text_config(decoder=True)


def select_buildable_config(full_config: Any) -> Any:
    """Return the decoder's configuration if a causal model accepts it, otherwise the full one. Raises `Unbuildable`."""
    import transformers

    auto_models = transformers.models.auto.modeling_auto
    for config in (decoder_config(full_config), full_config):
        if type(config) in auto_models.MODEL_FOR_CAUSAL_LM_MAPPING:
            return config
    if type(full_config) in getattr(auto_models, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", {}):
        return full_config
    raise Unbuildable(
        f"transformers {transformers.__version__} has no causal language model for "
        f"{full_config.model_type}; smoke trains only those"
    )


def _cut_tower(config: Any) -> None:
    """Keep one layer of a vision or audio tower, because text does not pass through it."""
    for name in ("depth", "num_hidden_layers", "encoder_layers"):
        set_number(config, name, 1)
    if config is not None and isinstance(getattr(config, "fullatt_block_indexes", None), list):
        config.fullatt_block_indexes = [0]


def _set_common_fields(config: Any, max_tokens: int, source: Architecture) -> None:
    config.vocab_size = source.vocabulary_size
    set_number(config, "decoder_vocab_size", source.vocabulary_size)  # marian's
    for name, token in (
        ("pad_token_id", source.pad_token_id),
        ("bos_token_id", source.pad_token_id - 1),
        ("eos_token_id", source.pad_token_id - 2),
    ):
        setattr(config, name, token)
    if (getattr(config, "max_position_embeddings", None) or max_tokens) < max_tokens:
        config.max_position_embeddings = max_tokens


def _strip_custom_code(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without fields that require code, kernels or quantisation from other packages."""
    dropped = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
    copied: dict[str, Any] = json.loads(json.dumps(dict(document)))
    for level in (copied, *(value for value in copied.values() if isinstance(value, dict))):
        for name in dropped:
            level.pop(name, None)
    return copied


def _cut_layers(config: Any) -> list[int]:
    """Keep a few layers of every kind, and cut all lists with one entry per layer; return the kept layers.

    Two hybrid layers are kept, because zamba's share their weights.
    """
    layer_count = int(getattr(config, "num_hidden_layers", 2))
    layer_types = list(getattr(config, "layer_types", None) or [])
    wanted = {kind: min(2, layer_types.count(kind)) if kind == "hybrid" else 1 for kind in layer_types}
    first = [i for i, kind in enumerate(layer_types) if layer_types[:i].count(kind) < wanted[kind]]
    keep = list(range(min(layer_count, max([1, *first]) + 1)))
    if len(keep) > MAX_LAYERS:  # the first of each kind
        keep = first
    counts = {name: getattr(config, name, None) or 0 for name in LAYER_COUNT_FIELDS}
    multiples = {name: layer_count // count for name, count in counts.items() if count and layer_count % count == 0}
    rest = -len(keep) % max((1, *multiples.values()))
    keep = sorted([*keep, *[layer for layer in range(layer_count) if layer not in keep][:rest]])
    for name, value in list(vars(config).items()):
        if not isinstance(value, list):
            continue
        if name.endswith(("layer_ids", "layer_indices")):  # numbers of layers
            setattr(config, name, [keep.index(layer) for layer in value if layer in keep])
        elif len(value) == layer_count and layer_count > 2:
            setattr(config, name, [value[index] for index in keep])
    config.num_hidden_layers = len(keep)
    for name, multiple in multiples.items():
        setattr(config, name, len(keep) // multiple)
    set_number(config, "num_kv_shared_layers", 0)  # gemma3n's and gemma4's count back from the last layer
    for name in ("encoder_layers", "decoder_layers"):  # the two halves of bart and similar models
        set_number(config, name, len(keep))
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
                own = getattr(config, per_token, None) or 0
                if own <= count and (per_token, own) != SAMPLING:
                    set_number(config, per_token, kept + (getattr(config, IDENTITY_EXPERTS_FIELD, None) or 0))
            for group in ("n_group", "topk_group"):
                set_number(config, group, 1)


def widen_config(config: Any) -> Any:
    """Return the configuration with the hidden size that the heads need, if the class derives head_dim from it."""
    wide = copy.deepcopy(config)
    decoder = decoder_config(wide)
    cut_from = getattr(decoder, "cut_from", None)
    if cut_from:
        set_hidden_size(decoder, cut_from["hidden_size"])
        set_fields(decoder, cut_from)
    return wide


def iter_fewer_heads(config: Any) -> Iterator[Any]:
    """Yield the configuration with as many heads as fit MAX_HIDDEN_SIZE, each as wide as in the model, then with more
    heads.

    With the full width, such as falcon's 4544, the model is not small, and does not learn at a small model's rate.
    """
    decoder = decoder_config(widen_config(config))
    heads = int(getattr(decoder, "num_attention_heads", None) or 0)
    if not heads:
        return
    head_dim = decoder.hidden_size // heads
    kept = max(1, MAX_HIDDEN_SIZE // head_dim)
    while kept < heads:
        yield _cut_heads(config, heads, head_dim, kept)
        kept *= 2


def _cut_heads(config: Any, heads: int, head_dim: int, kept: int) -> Any:
    narrow = widen_config(config)
    decoder = decoder_config(narrow)
    for name in HEAD_FIELDS:
        set_number(decoder, name, kept)
    set_hidden_size(decoder, kept * head_dim)
    for part in iter_parts(decoder):
        for name in KV_HEAD_FIELDS:
            groups = getattr(part, name, None)
            if isinstance(groups, int) and groups:
                set_number(part, name, math.gcd(kept, max(1, groups * kept // heads)))
    return narrow


def has_configured_heads(model: Any, config: Any) -> bool:
    """Return whether an attention layer projects q to the configuration's heads × head_dim."""
    config = decoder_config(config)
    if getattr(config, "is_heterogeneous", False) or hasattr(config, "qk_nope_head_dim"):
        return True  # heads have explicit sizes
    head_dim = getattr(config, "head_dim", None)
    widths = [
        module.out_features
        for name, module in model.named_modules()
        if name.endswith(".q_proj") and hasattr(module, "out_features")
    ]  # linear attention's too, in olmo_hybrid
    if not head_dim or not widths:
        return True
    width = config.num_attention_heads * head_dim
    return width in widths or 2 * width in widths  # qwen3_next's also has a gate
