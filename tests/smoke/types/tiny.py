"""A tiny random model of any causal type that transformers knows; attncheck's own shrinking has no part in it."""

from __future__ import annotations

import re
from typing import Any

import torch

HEADS, HEAD_DIM, WINDOW, LAYERS = 4, 16, 8, 2
WIDTH = HEADS * HEAD_DIM
# (a field's full name, its value), the first that matches; the fields are those of the type's default configuration.
FIELDS: tuple[tuple[str, int], ...] = (
    (r"index_n_heads", 32),  # a relu of all heads' scores: with few heads all may be 0, and the choice chance
    (r"(num_)?(encoder_|decoder_)?(kv_heads|key_value_heads)|num_query_groups|swa_num_key_value_heads", 2),
    (r"(num_)?(encoder_|decoder_|swa_num_|index_)?(attention_)?(n_)?heads|n_head", HEADS),
    (r"(num_)?(hidden_|encoder_|decoder_)?layers|n_layers?|num_(encoder|decoder)_layers|depth|encoder_layers", LAYERS),
    (r"vocab_size(_per_layer_input)?|tgt_vocab_size|codebook_size|encoder_hash_byte_group_vocab", 64),
    (
        r"(swa_|v_|qk_nope_|qk_rope_|index_|attention_|linear_(key_|value_)?)?head_dim|d_head|dim_head|kv_channels",
        HEAD_DIM,
    ),
    (r"attention_head_size|rotary_dim|global_head_dim", HEAD_DIM),
    (r"(hidden_size(_global)?|d_model|n_embd|emb_dim|embedding_(size|dim)|dim|lru_width|backbone_hidden_size)", WIDTH),
    (r"(input|output)_embedding_size|crossattention_hidden_size", WIDTH),
    (r".*(intermediate_size|ffn_dim|feed_forward_size|ffn_hidden_size)(_mlp)?|dff|d_inner|dim_ff", WIDTH),
    (r"(q|kv|o)_lora_rank|hidden_size_per_layer_input|laurel_rank|d_rel|hc_lowrank|adapter_rank", 16),
    (r"(n_routed|num|num_local|moe_num)_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts", 2),
    (r"(n_group|topk_group|n_groups|num_nextn_predict_layers|num_kv_shared_layers|o_groups)", 1),
    (r"sliding_window(_size)?|attention_window_size|attention_chunk_size|window_size|index_topk", WINDOW),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length|max_target_positions|rel_extent", 256),
)
# Encoders, which are causal only where their configuration asks for it.
_ENCODERS = """
    bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
    roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod
"""
ENCODERS = _ENCODERS.split()
# What no rule by name finds, read in the type's configuration class.
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 16}
BOTH = ["linear_attention", "full_attention"]
ENCODER = {"model_type": "t5", "d_model": 64, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 4, "vocab_size": 64}
QSA = {
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
    },
    "indexer_block_size": 4,
}
BLT_PART = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 64,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], **MAMBA},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "falcon_mamba": {"intermediate_size": 128, "time_step_rank": 4},
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text"}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {**MAMBA, "layer_types": BOTH, "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": HEAD_DIM},
    "hunyuan_v1_moe": {"head_dim": HEAD_DIM, "num_experts": 4, "moe_topk": 2},
    "jamba": {"mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "longcat_flash": {"qk_head_dim": 32, "head_dim": 16, "num_hidden_layers": 4, "num_layers": 2},
    "mamba": {"intermediate_size": 128, "time_step_rank": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 16, "chunk_size": 16, "time_step_rank": 4},
    "ministral": {"head_dim": HEAD_DIM},
    "musicgen": {"text_encoder": ENCODER, "audio_encoder": {"model_type": "encodec"}},
    "musicgen_melody": {"text_encoder": ENCODER, "audio_encoder": {"model_type": "encodec"}},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {
        "layer_types": [*BOTH, "moe", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 1,
        "ssm_state_size": 16,
        "chunk_size": 16,
    },
    "qwen4_exp": {"text_config": QSA},
    "qwen4_exp_text": QSA,
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2}},
    "gemma3n_text": {"num_kv_shared_layers": 0, "intermediate_size": 64, "activation_sparsity_pattern": [0.0, 0.0]},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 16]},
    "xlm": {"causal": True},
    "zamba": {
        "layer_types": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 5,
        "mamba_dt_rank": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "zamba2": {
        "layer_types": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "n_mamba_heads": 4,
        "mamba_d_state": 16,
        "chunk_size": 16,
        "num_mem_blocks": 1,
    },
}


def tiny_config(model_type: str) -> Any:
    """Return a tiny configuration of a type. Raises what transformers raises for one that does not fit together."""
    import transformers

    default = transformers.CONFIG_MAPPING[model_type]()
    return shrink(default, SPECIAL.get(model_type, {}))


def shrink(default: Any, special: dict[str, Any]) -> Any:
    """Return a configuration of the same class with small numbers, and every kind of layer once or twice."""
    fields: dict[str, Any] = {}
    for name, value in vars(default).items():
        if hasattr(value, "to_dict"):
            fields[name] = shrink(value, special.get(name, {}))
        elif name.endswith("_token_id"):
            fields[name] = min(value, 3) if isinstance(value, int) else value
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            small = next((number for pattern, number in FIELDS if re.fullmatch(pattern, name)), value)
            fields[name] = min(value, small) if "head" not in name else small
    heads = [getattr(default, name, None) for name in ("num_attention_heads", "num_key_value_heads")]
    if heads[0] == heads[1] and heads[0]:
        fields["num_key_value_heads"] = HEADS
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or []))
    if kinds and not is_computed(default, "layer_types"):
        fields["layer_types"] = kinds * 2 if len(kinds) == 1 else kinds
        fields["num_hidden_layers"] = len(fields["layer_types"])
    if type(default).model_type in ENCODERS:
        fields["is_decoder"] = True  # of an encoder's type
    fields = {name: value for name, value in fields.items() if not is_computed(default, name)}
    return type(default)(**fields | special)


def is_computed(config: Any, name: str) -> bool:
    """Return whether a field is computed from others by the configuration's class."""
    return isinstance(getattr(type(config), type(config).attribute_map.get(name, name), None), property)


def tiny_model(model_type: str, implementation: str) -> torch.nn.Module:
    """Return the model in float32 and eval mode, its weights large enough that attention matters."""
    import transformers

    torch.manual_seed(0)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(
        tiny_config(model_type), attn_implementation=implementation
    )
    model = model.float().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model
