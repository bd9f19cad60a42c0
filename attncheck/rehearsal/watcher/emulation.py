"""Makes transformers accept the emulated flash-attn without a GPU: it requires CUDA before importing it.

A framework that checks for a GPU's bfloat16 support before training gets the answer yes, because the CPU supports it.

Sources: transformers 5.17 `utils/import_utils.py` (`is_flash_attn_2_available`, `is_torch_bf16_gpu_available`),
`modeling_utils.py` (`_flash_attn_can_dispatch`; 4.48 to 5.3 `_flash_attn_2_can_dispatch`; before,
`_check_and_enable_flash_attn_2`); `integrations/hub_kernels.py` of 4.56.2, 5.5.4, 5.9.0 and 5.17.0.
"""

from __future__ import annotations

import functools
import os
import re
from importlib import import_module
from typing import Any

CHECKS = ("_flash_attn_can_dispatch", "_flash_attn_2_can_dispatch", "_flash_attn_3_can_dispatch")
# The function that finds the module of a newer implementation: 5.17, 4.53 to 4.57 for the first.
NEWER = {"flash_attention_3": "is_flash_attn_3_available", "flash_attention_4": "is_flash_attn_4_available"}
# The end of a Hub kernel's repository -> the emulated module; the first that matches.
HUB_KERNELS = {
    r"/vllm-flash-attn3": "flash_attn.vllm_flash_attn_3",
    r"flash-attn-?3": "flash_attn.flash_attn_3",
    r"flash-attn-?4": "flash_attn.cute",
    r"flash-attn-?2?": "flash_attn",
}
HUB_LOADERS = ("load_and_register_attn_kernel", "load_and_register_kernel")  # 5.17.0, 4.56.2
HUB_AVAILABLE = {"is_kernels_available": lambda: True, "_kernels_available": True}  # since 5.15, before
OLD_CHECK = "_check_and_enable_flash_attn_2"


def allow_in_import_utils(import_utils: Any) -> None:
    """Make transformers accept the replacements of a GPU's flash-attn and bfloat16."""
    implementation = os.environ.get("ATTNCHECK_EMULATED")
    if implementation:
        import_utils.is_flash_attn_2_available = _answer_yes
    if implementation in NEWER:
        setattr(import_utils, NEWER[implementation], _answer_yes)
    original = getattr(import_utils, "is_torch_bf16_gpu_available", _answer_yes)
    import_utils.is_torch_bf16_gpu_available = lambda: not import_module("torch").cuda.is_available() or original()


def allow_hub_kernels(hub_kernels: Any) -> None:
    """Make transformers load a flash-attn from the Hub as its emulation, also if `kernels` is not installed."""
    if not os.environ.get("ATTNCHECK_EMULATED"):
        return
    original = getattr(hub_kernels, "get_kernel", None)

    def get_kernel(name: str, *arguments: Any, **options: Any) -> Any:
        module = next((own for pattern, own in HUB_KERNELS.items() if re.search(f"{pattern}$", name)), None)
        if module is not None:
            return import_module(module)
        if original is None:
            raise ImportError(f"{name} needs the package kernels")
        return original(name, *arguments, **options)

    hub_kernels.get_kernel = get_kernel
    for name in HUB_LOADERS:
        if hasattr(hub_kernels, name):
            setattr(hub_kernels, name, _as_available(hub_kernels, getattr(hub_kernels, name)))


def _as_available(hub_kernels: Any, load: Any) -> Any:
    """Return a loader of attention kernels that takes `kernels` for installed; other kernels are not emulated."""

    @functools.wraps(load)
    def call(*arguments: Any, **options: Any) -> Any:
        held = {name: vars(hub_kernels)[name] for name in HUB_AVAILABLE if name in vars(hub_kernels)}
        vars(hub_kernels).update({name: HUB_AVAILABLE[name] for name in held})
        try:
            return load(*arguments, **options)
        finally:
            vars(hub_kernels).update(held)

    return call


def allow_in_torch(torch: Any) -> None:
    """Make torch.cuda's calls that choose a device, or wait for one, do nothing if there is none.

    If a process group requests NCCL by name (axolotl 0.9.2 monkeypatch/attention/ring_attn/patch.py:101), gloo is used.
    """
    if os.environ.get("ATTNCHECK_WITHOUT_CUDA") and not torch.cuda.is_available():
        for name in (
            "set_device",
            "synchronize",
        ):  # separate functions, because torch.compile's tables need distinct ones
            setattr(torch.cuda, name, lambda *arguments, **options: None)
        torch.cuda.current_device = lambda: torch.device("cpu")
        if torch.distributed.is_available():
            torch.distributed.new_group = _make_gloo_group(torch.distributed.new_group)


def _make_gloo_group(new_group: Any) -> Any:
    @functools.wraps(new_group)
    def call(*arguments: Any, **options: Any) -> Any:
        if options.get("backend") == "nccl":
            options["backend"] = "gloo"
        return new_group(*arguments, **options)

    return call


def allow_in_modeling_utils(modeling_utils: Any) -> None:
    """Let models be created with flash_attention_2 on a CPU."""
    model_class = modeling_utils.PreTrainedModel
    for name in CHECKS:
        if hasattr(model_class, name):
            setattr(model_class, name, _answer_yes)
    if hasattr(model_class, OLD_CHECK):
        setattr(model_class, OLD_CHECK, classmethod(_enable))


def _answer_yes(*arguments: Any, **options: Any) -> bool:
    return True


def _enable(model_class: Any, config: Any, *arguments: Any, **options: Any) -> Any:
    config._attn_implementation = "flash_attention_2"
    return config
