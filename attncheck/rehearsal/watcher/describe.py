"""Describes a model and its process: its patches, and the functions in effect."""

from __future__ import annotations

import functools
import linecache
import os
import sys
from typing import Any

PATCHING_PACKAGES = ("liger_kernel", "ring_flash_attn", "unsloth", "cut_cross_entropy", "flash_attn", "deepspeed")


def describe_model(model: Any) -> dict[str, Any]:
    """Return facts about a model at its call: device, attention, mode, patches."""
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "attn_implementation": str(getattr(model.config, "_attn_implementation", "") or ""),
        "use_cache": bool(getattr(model.config, "use_cache", False)),
        "dtype": str(next(iter(model.parameters())).dtype),
        "device": _describe_device(next(iter(model.parameters())).device),
        "is_training": bool(model.training),
        "forward": _name_function(getattr(model, "forward", None)),
        "loss_function": _name_function(getattr(model, "loss_function", None)),
        "gradient_checkpointing": bool(getattr(model, "is_gradient_checkpointing", False)),
        "predicts_tokens": model.get_output_embeddings() is not None or hasattr(model, "lm_head"),
        "is_untied": _is_untied(model),
        "only_on_gpu": find_gpu_patches(str(getattr(model.config, "model_type", ""))),
    }


def _is_untied(model: Any) -> bool:
    """Return whether plain embeddings and the head have two weights, although the configuration ties them."""
    try:
        embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:  # a class of the script's own need not tell which they are
        return False
    config = getattr(model.config, "get_text_config", lambda: model.config)()
    is_tied = getattr(model.config, "tie_word_embeddings", False) and getattr(config, "tie_word_embeddings", False)
    held = [vars(module)["_parameters"].get("weight") for module in (embeddings, head) if module is not None]
    return bool(is_tied and len(held) == 2 and None not in held and held[0] is not held[1])


@functools.cache
def find_gpu_patches(model_type: str) -> str:
    """Return the file of a loaded module that patches models of a type, and asks for a GPU; "" if there is one.

    axolotl 0.19.0 loaders/patch_manager.py: "Patches requiring CUDA" make recurrent layers separate packed documents.
    """
    if not model_type or sys.modules["torch"].cuda.is_available():
        return ""
    modules = [module for name, module in [*sys.modules.items()] if "patch" in name]
    for path in (str(getattr(module, "__file__", "")) for module in modules):
        text = "".join(linecache.getlines(path))  # "" if it cannot be read
        if "cuda.is_available()" in text and f'"{model_type.removesuffix("_text")}"' in text:
            return path
    return ""


def _describe_device(device: Any) -> dict[str, str]:
    """Return the kind and name of a device, and torch's version."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return {"kind": device.type, "name": name, "torch": str(torch.__version__)}


def describe_adapters(model: Any) -> list[tuple[str, str, float]]:
    """Return each LoRA of a linear layer with gradients free of randomness: the layer, its name, its scaling.

    Source: peft 0.21.2 `tuners/lora/layer.py` (`LoraLayer`: dictionaries by the adapter's name, including `use_dora`;
    in later releases `lora_variant`).
    """
    import torch

    adapters = []
    for layer, module in model.named_modules():
        scalings, dropouts = getattr(module, "scaling", None), getattr(module, "lora_dropout", {})
        if not isinstance(scalings, dict) or not isinstance(getattr(module, "base_layer", None), torch.nn.Linear):
            continue
        variants = {**(getattr(module, "use_dora", None) or {}), **(getattr(module, "lora_variant", None) or {})}
        for name in getattr(module, "active_adapters", ()):
            is_random = name in dropouts and getattr(dropouts[name], "p", 0.0) > 0
            if name in scalings and not is_random and not variants.get(name):
                adapters.append((layer, name, float(scalings[name])))
    return adapters


def describe_prompt(tokenizer: Any) -> str | None:
    """Return what the chat template writes after the last question of a prompt, None if it cannot be rendered."""
    question = "QUESTION"
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
    except Exception:  # the template's author decides what it refuses
        return None
    return str(text.rpartition(question)[2]) if question in text else None


def describe_process() -> dict[str, Any]:
    """Return the process's rank and world size, and the packages in it that patch models."""
    rank, world_size = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    packages = [name for name in PATCHING_PACKAGES if name in sys.modules]
    return {"rank": rank, "world_size": world_size, "packages": packages}


def _name_function(function: Any) -> str:
    function = getattr(function, "__func__", function)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}" if function else ""
