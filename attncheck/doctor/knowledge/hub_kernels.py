"""The GPUs that the Hub's attention kernels are built for, and the models that transformers redirects to them.

Source, read on 2026-11-26: huggingface/kernels-community at 40d4194f, build.toml of each kernel (`cuda-capabilities`)
and vllm-flash-attn3/flash-attn/flash_api.cpp ("S aux is currently only supported for Hopper GPUs"); transformers 5.3.0,
5.5.0, 5.6.0, 5.17.0, 5.19.0 and 5.24.0, models/*/modeling_*.py (`_compatible_flash_implementations`).
"""

# Repository -> the targets its extension has code for. A kernel without an entry is compiled at its first call, or was
# not read.
KERNEL_TARGETS: dict[str, tuple[str, ...]] = {
    "kernels-community/flash-attn2": ("sm_80", "sm_90", "sm_100", "sm_120"),
    "kernels-community/flash-attn3": ("sm_80", "sm_90a"),
    "kernels-community/vllm-flash-attn3": ("sm_80", "sm_90a"),
    "kernels-community/flash-mla": ("sm_90a", "sm_100f"),
}
# Kernels that accept attention sinks -> the targets with code for them.
SINK_TARGETS: dict[str, tuple[str, ...]] = {"kernels-community/vllm-flash-attn3": ("sm_90a",)}

# Model type -> the first release read with a list in its class, the first one without it again, and the list. A
# requested flash attention that is not in the list is replaced by the first entry.
FLASH_REDIRECTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gpt_oss": ("5.3.0", "", ("kernels-community/vllm-flash-attn3", "flash_attention_4")),
    "openai_privacy_filter": ("5.6.0", "", ("kernels-community/vllm-flash-attn3", "flash_attention_4")),
    "granite_swa": ("5.17.0", "", ("kernels-community/vllm-flash-attn3", "flash_attention_4")),
    "granitemoe_swa": ("5.17.0", "", ("kernels-community/vllm-flash-attn3", "flash_attention_4")),
    "flint": ("5.24.0", "", ("kernels-community/vllm-flash-attn3", "flash_attention_4")),
    "glm_moe_dsa": ("5.5.0", "5.17.0", ("kernels-community/flash-mla",)),
    "minimax_m3_vl": ("5.17.0", "", ("MiniMaxAI/msa",)),
    "mimo_v2_flash": ("5.17.0", "", ("flash_attention_4",)),
}
