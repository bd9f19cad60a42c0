"""The values that transformers' configuration classes use for fields that config.json leaves out.

Checkpoints store only differences from the class, so a missing field means the class default. The import lane queries
the installed class itself; this table is used if that lane did not run.

Source: the `__init__` defaults of models/*/configuration_*.py in the transformers 4.57.3 and 5.23.0 wheels, which agree
on every value below if both have the class (read 2026-11-21 by building each class without arguments).
"""

from __future__ import annotations

from typing import Any

_GEMMA2 = {"head_dim": 256, "attn_logit_softcapping": 50.0, "sliding_window": 4096}
_GEMMA3 = {
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}
_GEMMA4 = {
    "hidden_size": 2304,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
    "max_position_embeddings": 131072,
}
_QWEN2 = {"use_sliding_window": False, "max_window_layers": 28}
_QWEN2_VL = {"use_sliding_window": False, "max_window_layers": 80}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": _GEMMA2,
    "vaultgemma": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
    "granite_swa": {"num_key_value_heads": 4, "sliding_window": 128},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "llama4_text": {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": {"use_sliding_window": False, "max_window_layers": 28, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False, "num_key_value_heads": 4},
    "smollm3": {"use_sliding_window": False},
    "qwen3_next": {"head_dim": 256, "num_key_value_heads": 2, "full_attention_interval": 4},
    "qwen3_5_text": {"head_dim": 256, "num_key_value_heads": 4, "full_attention_interval": 4},
    "qwen3_5_moe_text": {"head_dim": 256, "num_key_value_heads": 2, "full_attention_interval": 4},
    "qwen3_vl_text": {"head_dim": 128},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "starcoder2": {"num_key_value_heads": 2},
    "falcon": {"multi_query": True, "new_decoder_architecture": False, "alibi": False},
    "gpt_bigcode": {"multi_query": True},
    "jamba": {"num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4},
}


def fill_defaults(model_type: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` with missing fields set to the class defaults of `model_type`."""
    complete = dict(DEFAULTS.get(model_type, {}))
    complete.update(document)
    return complete
