"""Training and rollout frameworks: which distributions they are, and where they changed.

Source: wheels of openrlhf 0.11.2 and verl 0.9.1, read on 2026-11-21; the threads named at each entry.
"""

from __future__ import annotations

# Distributions whose requirements of one another decide whether the attention stack works.
FRAMEWORKS = ("openrlhf", "verl", "trl", "llamafactory", "ms-swift", "axolotl", "unsloth", "vllm", "sglang")
WATCHED = (
    *FRAMEWORKS,
    *("accelerate", "deepspeed", "flash-attn", "flash-attn-3", "flash-attn-4", "kernels", "liger-kernel", "peft"),
    *("ring-flash-attn", "torchaudio", "torchvision", "transformer-engine", "transformers", "xformers", "yunchang"),
)
# What may not be of any version beside them: packages whose mismatch breaks attention, not tools around it.
MATTERS = frozenset(WATCHED) | {"torch", "triton", "tokenizers", "huggingface-hub", "nvidia-cutlass-dsl", "ray"}

# OpenRLHF sets NCCL_CUMEM_ENABLE=0 itself for vllm below this, and from it on the weight sync fails with it
# (openrlhf 0.11.2, trainer/ray/ppo_actor.py: "causes ncclCommInitRank to fail under NCCL 2.27+").
VLLM_NEEDS_CUMEM = "0.16"
NCCL_NEEDS_CUMEM = "2.27"
# verl raises "Transformers 4.53.* is bugged" for Qwen2-VL (verl 0.9.1, models/transformers/monkey_patch.py).
VERL_VLM_BUGGED = ">=4.53,<4.54"
# torch reads PYTORCH_ALLOC_CONF from this version on (huggingface/trl#5794).
ALLOC_CONF_RENAMED = "2.10"
# vllm below this asserts that expandable segments are off for sleep mode (vllm 0.16.0, 0.20.0 and 0.20.1,
# device_allocator/cumem.py; vllm-project/vllm#14189, #40812).
VLLM_TOLERATES_EXPANDABLE = "0.20.1"
# Variables that verl hands to its Ray workers (verl 0.9.1, trainer/constants_ppo.py); OpenRLHF hands on none of
# these kinds (openrlhf 0.11.2, cli/train_ppo_ray.py: TOKENIZERS_PARALLELISM, NCCL_DEBUG, RAY_ENABLE_…).
VERL_FORWARDS = frozenset(
    {
        "PYTHONHASHSEED",
        "CUBLAS_WORKSPACE_CONFIG",
        "FLASH_ATTENTION_DETERMINISTIC",
        "NCCL_DETERMINISTIC",
        "NCCL_ALGO",
        "VERL_FULL_DETERMINISM",
        "VLLM_BATCH_INVARIANT",
    }
)
# The newest flash-attn that TransformerEngine accepts (FlashAttentionUtils.max_version, snapshots of 2026-08).
TE_FLASH_ATTN = "2.8.3"
# Oldest transformers of DeepSpeed's UlyssesSPAttentionHF (DeepSpeed snapshot of 2026-08).
DEEPSPEED_ULYSSES_TRANSFORMERS = "4.51.3"
# vllm deprecates VLLM_ATTENTION_BACKEND from this version on (vllm-project/vllm#26315); 0.26.0 ignores it (#50292).
VLLM_BACKEND_VARIABLE_OLD = "0.13"
