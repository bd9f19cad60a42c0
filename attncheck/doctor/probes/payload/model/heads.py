"""Derives head counts and head sizes of a model from the many names that configurations use for them.

Read in transformers 5.23.0: models/falcon (`new_decoder_architecture`, `multi_query`, `num_kv_heads`), gpt_bigcode
(`multi_query`), deepseek_v3 (q and k: `qk_nope_head_dim + qk_rope_head_dim`; `head_dim` there is only the rotary part),
gemma4 (`global_head_dim` on its full_attention layers, kept as `per_layer_config` once loaded), t5 (`d_kv`), zamba
(`attention_head_dim`). chatglm's names come from its own code (`multi_query_group_num`, `kv_channels`).
"""

from __future__ import annotations

from typing import Any

from ..facts import absent, known, unreadable
from .values import as_object, known_value, read_int

HEAD_COUNT_KEYS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "decoder_attention_heads",
    "encoder_attention_heads",
)
HIDDEN_SIZE_KEYS = ("hidden_size", "n_embd", "d_model", "model_dim")


def derive_head_fields(document: dict[str, Any], model_type: str, layer_types: list[str]) -> dict[str, Any]:
    """Return the fields num_heads, num_kv_heads, head_dim, v_head_dim and head_dims of the text part."""
    heads = read_int(document, *HEAD_COUNT_KEYS)
    sizes = _head_dims(document, heads, layer_types)
    head_dim = known(max(sizes["known"])) if "known" in sizes else sizes
    return {
        "num_heads": heads,
        "num_kv_heads": _num_kv_heads(document, model_type, heads),
        "head_dim": head_dim,
        "v_head_dim": _v_head_dim(document, head_dim),
        "head_dims": sorted(known_value(sizes, [])),
    }


def _num_kv_heads(document: dict[str, Any], model_type: str, heads: dict[str, Any]) -> dict[str, Any]:
    if model_type == "falcon":
        is_mqa = document.get("multi_query") is True and document.get("new_decoder_architecture") is not True
        count = read_int(document, "num_kv_heads", "n_head_kv")
        return known(1) if is_mqa else heads if "absent" in count else count
    if model_type == "gpt_bigcode":
        return known(1) if document.get("multi_query") is True else heads
    if document.get("multi_query_attention") is True:
        return read_int(document, "multi_query_group_num")
    count = read_int(document, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if "absent" in count:
        count = read_int(as_object(document.get("attn_config")), "kv_n_heads")
    return heads if "absent" in count else count


def _head_dims(document: dict[str, Any], heads: dict[str, Any], layer_types: list[str]) -> dict[str, Any]:
    base = _base_head_dim(document, heads)
    if "known" not in base:
        return base
    sizes = {base["known"]}
    full = read_int(document, "global_head_dim")
    if "known" in full and "full_attention" in layer_types:
        sizes = {full["known"]} if set(layer_types) == {"full_attention"} else sizes | {full["known"]}
    for layer_config in as_object(document.get("per_layer_config")).values():
        sizes.update(known_value(read_int(as_object(layer_config), name), base["known"]) for name in ("head_dim",))
    return known(sizes)


def _base_head_dim(document: dict[str, Any], heads: dict[str, Any]) -> dict[str, Any]:
    nope, rope = read_int(document, "qk_nope_head_dim", minimum=0), read_int(document, "qk_rope_head_dim", minimum=0)
    if "known" in nope and "known" in rope and nope["known"] + rope["known"] > 0:
        return known(nope["known"] + rope["known"])
    stated = read_int(document, "head_dim", "attention_head_dim", "kv_channels", "d_kv", "head_size")
    if "absent" not in stated:
        return stated
    hidden = read_int(document, *HIDDEN_SIZE_KEYS)
    for fact in (heads, hidden):
        if "known" not in fact:
            return fact
    if hidden["known"] < heads["known"]:
        return unreadable("hidden size {} is smaller than {} heads".format(hidden["known"], heads["known"]))
    return known(hidden["known"] // heads["known"])


def _v_head_dim(document: dict[str, Any], head_dim: dict[str, Any]) -> dict[str, Any]:
    stated = read_int(document, "v_head_dim")
    return head_dim if "absent" in stated else stated


def derive_tower(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the record `core.model.Tower` of a vision or audio part, as a fact."""
    heads = read_int(document, *HEAD_COUNT_KEYS)
    hidden = read_int(document, "embed_dim", *HIDDEN_SIZE_KEYS)  # in qwen2_vl hidden_size is the text part's width
    head_dim = read_int(document, "head_dim")
    if "known" not in heads or ("known" not in hidden and "known" not in head_dim):
        return absent(name + " does not give its heads")
    size = known_value(head_dim) or hidden["known"] // heads["known"]
    return known({"name": name, "num_heads": heads["known"], "head_dim": size}) if size else absent(name)
