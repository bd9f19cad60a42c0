"""The distributions and import names that decide whether attention works."""

from __future__ import annotations

_WATCHED_NAMES = """
    torch torchvision torchaudio triton pytorch-triton triton-rocm xformers numpy einops
    flash-attn flashattn-hopper ring-flash-attn yunchang liger-kernel kernels
    transformers tokenizers huggingface-hub accelerate peft trl deepspeed bitsandbytes
    vllm sglang sgl-kernel flashinfer-python openrlhf verl llamafactory axolotl ms-swift nemo-rl unsloth torchtitan
    apex causal-conv1d mamba-ssm fla-core flash-linear-attention megatron-core ray
    nvidia-cutlass-dsl quack-kernels apache-tvm-ffi
"""
_WATCHED = frozenset(_WATCHED_NAMES.split())
_WATCHED_PREFIXES = (
    "flash-attn-",
    "transformer-engine",
    "triton-",
    "nvidia-nccl-",
    "nvidia-cudnn-",
    "nvidia-cuda-runtime",
    "nvidia-cutlass-dsl-",
    "flash-mla",
)
# Small and often broken, so every file is compared with RECORD.
_COMPARED = ("flash-attn", "flashattn-hopper", "ring-flash-attn", "liger-kernel")

# Import name -> the distributions that are expected to provide it.
IMPORT_PROVIDERS = {
    "flash_attn": ("flash-attn", "flash-attn-4"),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "ring_flash_attn": ("ring-flash-attn",),
    "triton": ("triton", "pytorch-triton", "triton-rocm", "triton-windows"),
    "liger_kernel": ("liger-kernel",),
    "vllm": ("vllm",),
    "verl": ("verl",),
    "openrlhf": ("openrlhf",),
}


def is_watched(name: str) -> bool:
    """Return whether the distribution `name` (normalised) is read in full."""
    return name in _WATCHED or name.startswith(_WATCHED_PREFIXES)


def is_compared(name: str) -> bool:
    """Return whether the files of the distribution `name` are compared with its RECORD."""
    return name in _COMPARED or name.startswith("flash-attn-")
