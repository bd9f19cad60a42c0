"""The packages that are linked: those that provide names, and those that import them."""

from __future__ import annotations

import os

from .. import files
from ..packages import distributions, integrity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Tuple

    Consumers = Dict[str, Tuple[str, ...]]

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
# Nearly every package requires these two, few of them anything of the attention stack.
_REQUIRED_BY_ALL = frozenset(("torch", "huggingface-hub"))
# A finding in these is confirmed by an import. It writes caches or changes other packages in those that are left out,
# and nobody knows what it does in a package that is not in CONSUMERS.
IMPORTED = frozenset(name.partition("/")[0] for names in CONSUMERS.values() for name in names) - frozenset(
    ("deepspeed", "unsloth", "unsloth_zoo", "vllm", "sglang", "flash_attn", "xformers")
)


def choose_consumers(installed: Iterable[dict[str, Any]]) -> Consumers:
    """Return what to read of each installed distribution: those in CONSUMERS, and all that require a provider."""
    providers = frozenset(PROVIDERS.values()) - _REQUIRED_BY_ALL
    chosen: Consumers = {}
    records = integrity.Records()
    for distribution in installed:
        name = str(distribution["name"])
        if name in CONSUMERS:
            chosen[name] = CONSUMERS[name]
        elif name not in WATCHED and providers.intersection(distributions.read_required_names(distribution)):
            names = integrity.top_level_names(distribution, records) or _list_tree(distribution)
            chosen[name] = tuple(part for top in sorted(names) for part in _list_parts(distribution, top, records))
    return chosen


def _list_parts(distribution: dict[str, Any], name: str, records: integrity.Records) -> list[str]:
    """Return a package, or a distribution's packages in a folder that others share: megatron has no `__init__.py`."""
    folder, record = os.path.join(os.path.dirname(distribution["_path"]), name), records[distribution["_path"]]
    is_shared = not os.path.isfile(os.path.join(folder, "__init__.py"))
    parts = [f"{name}/{part}" for part in files.list_folder(folder)] if is_shared else []
    return [part for part in parts if f"{part}/__init__.py".encode() in record] or [name]


def _list_tree(distribution: dict[str, Any]) -> list[str]:
    """Return the packages in the source tree of an editable distribution, whose RECORD names none."""
    url = str(distribution["direct_url"])
    tree = url[7:] if distribution["editable"] and url.startswith("file://") else ""
    return [
        name
        for folder in ((tree, os.path.join(tree, "src")) if tree else ())
        for name in files.list_folder(folder)
        if name not in ("tests", "examples") and os.path.isfile(os.path.join(folder, name, "__init__.py"))
    ]
