"""Attention features that models need, and the releases in which the stack does not provide them.

Source: the transformers wheels 4.42.4 to 5.23.0 (about 50 of them; models/*/modeling_*.py, masking_utils.py,
integrations/*.py), ring_flash_attn 0.1.8, flash_attn 2.8.3, flash_attn_4 4.0.0b36, accelerate 1.10.0 to 1.15.0 and
LLaMA-Factory 0.9.3 to 0.9.5, read on 2026-11-21. A boundary is the first release read that contains the change.
"""

FUSED_IMPLEMENTATIONS = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "sdpa", "flex_attention")

# Since this release integrations/sdpa_attention.py raises on a softcap (and gemma2 sets `_supports_sdpa = False`);
# 5.20.2 and older drop it silently.
SDPA_REFUSES_SOFTCAP = "5.21.0"
# flash-attn has a `softcap` argument since 2.6.0 (its README's change log).
FLASH_SOFTCAP = "2.6.0"
# Since this release models with sinks name the kernels that support them (`_compatible_flash_implementations`). Before,
# a plain flash_attention_2 is accepted and `s_aux` dropped (modeling_flash_attention_utils.py), read in 4.55.0 to
# 5.2.0.
SINKS_REDIRECTED = "5.3.0"
# Since this release integrations/flash_attention.py pads V to Q's head size; before, each MLA model did so itself.
V_PADDED_OUTSIDE_THE_MODEL = "5.15.0"
# The first flash-attn whose backward accepts head sizes over 192 on GPUs with 99 KiB of shared memory (its README).
WIDE_BACKWARD_ON_CONSUMER_GPUS = "2.5.5"
SMALL_SHARED_MEMORY = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
# Since this release flash_attn.bert_padding.unpad_input returns five values instead of four.
FIVE_FROM_UNPAD_INPUT = "2.7.0"
# accelerate has context parallelism (`cp_size`) since 1.10.0; since 1.15.0 it refuses models with windows
# (big_modeling.py) instead of dropping their masks.
ACCELERATE_CONTEXT_PARALLEL = ("1.10.0", "1.15.0")

# Layers with a recurrent state, which neither positions nor cu_seqlens of attention reset.
RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "hybrid", "conv"})
# Models whose recurrent layers accept `cu_seq_lens_q` -> first release that passes it to them.
RECURRENT_VARLEN: dict[str, str] = {
    "qwen3_next": "5.9.0",
    "qwen3_5": "5.9.0",
    "qwen3_5_moe": "5.9.0",
    "olmo_hybrid": "5.15.0",
}
# For these, the torch fallback ignores cu_seqlens; they need flash-linear-attention and causal-conv1d.
GATED_DELTA_RULE = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"})
# Models with Mamba layers that are slow without mamba-ssm and causal-conv1d (modeling_*.py of 4.57.3).
MAMBA_MODELS = frozenset(
    {
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "mamba",
        "mamba2",
        "nemotron_h",
        "zamba",
        "zamba2",
    }
)
# flash-linear-attention since the first release requires transformers since the second (METADATA of 0.4.1, 0.5.0 and
# 0.6.0). Installing it next to an older transformers changes transformers.
FLA_REQUIRES_TRANSFORMERS = ("0.6", "5.6.2")
# Since the first release, integrations/sdpa_attention.py requests `enable_gqa` whenever there is no mask (in 4.55.4,
# not in 4.53.2). Since the second, it does so only if the head sizes suit a fused backend (in 5.14.1, not in 5.10.1).
SDPA_GQA_UNGUARDED = ("4.55", "5.14.1")
