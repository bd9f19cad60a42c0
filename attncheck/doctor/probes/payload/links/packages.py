"""The packages that are linked: those that provide names, and those that import them."""

from __future__ import annotations

# Import name -> distribution, for packages that provide names.
PROVIDERS = {
    "transformers": "transformers",
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn-3",
    "flash_attn_3": "flash-attn-3",
    "liger_kernel": "liger-kernel",
    "ring_flash_attn": "ring-flash-attn",
    "trl": "trl",
    "peft": "peft",
    "accelerate": "accelerate",
    "kernels": "kernels",
    "deepspeed": "deepspeed",
    "yunchang": "yunchang",
    "xformers": "xformers",
    "vllm": "vllm",
    "sglang": "sglang",
    "huggingface_hub": "huggingface-hub",
    "torch": "torch",
    "fla": "fla-core",
    "unsloth_zoo": "unsloth-zoo",
    "megatron": "megatron-core",
}
# Distribution -> the packages to read, or one folder in them: for vLLM and SGLang, the part that uses transformers.
CONSUMERS: dict[str, tuple[str, ...]] = {
    "ring-flash-attn": ("ring_flash_attn",),
    "liger-kernel": ("liger_kernel",),
    "flash-attn": ("flash_attn",),
    "flash-attn-3": ("flash_attn_interface", "flash_attn_3"),
    "flash-attn-4": ("flash_attn/cute",),
    "kernels": ("kernels",),
    "trl": ("trl",),
    "peft": ("peft",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "verl": ("verl",),
    "openrlhf": ("openrlhf",),
    "axolotl": ("axolotl",),
    "ms-swift": ("swift",),
    "llamafactory": ("llamafactory",),
    "yunchang": ("yunchang",),
    "xformers": ("xformers",),
    "unsloth": ("unsloth/models", "unsloth/kernels", "unsloth/utils"),
    "unsloth-zoo": ("unsloth_zoo",),
    "vllm": ("vllm/transformers_utils", "vllm/distributed"),
    "sglang": ("sglang/srt/utils",),
}
WATCHED = frozenset(PROVIDERS.values()) | frozenset(CONSUMERS) | {"flash-linear-attention"}
# Importing these writes caches or changes other packages, so findings in them are not confirmed by an import.
NOT_IMPORTED = frozenset(("deepspeed", "unsloth", "unsloth_zoo", "vllm", "sglang", "flash_attn", "xformers"))
