"""Lists the modules to import, the distributions that provide them, and the imports that each needs first."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class PlannedImport(NamedTuple):
        """One module to import."""

        module: str
        distributions: tuple[str, ...]
        parent: str = ""
        deadline_share: float = 0.5
        is_fork_server: bool = False
        only_if_on_disk: bool = False

else:
    from collections import namedtuple

    PlannedImport = namedtuple(
        "PlannedImport", "module distributions parent deadline_share is_fork_server only_if_on_disk"
    )
    PlannedImport.__new__.__defaults__ = ("", 0.5, False, False)

TORCH, TRANSFORMERS = "torch", "transformers"
FLASH_UTILS = "transformers.modeling_flash_attention_utils"
MODELING = "transformers.modeling_utils"

# `parent` is imported first and once. `deadline_share` is for the first try; the rest is for a second one. Extension
# modules are tried only if their file exists: a ROCm flash-attn has no flash_attn_2_cuda, and later vllm releases split
# vllm._C. For vllm the extension, not the package, shows whether the binary loads: before 0.8, `import vllm` imported
# the whole engine (10 s), and later it is lazy and loads no extension at all. deepspeed, flashinfer and unsloth are
# left out, because importing them writes caches or patches other packages.
PLAN = (
    PlannedImport(TORCH, ("torch",), "", 1.0, True),
    PlannedImport(TRANSFORMERS, ("transformers",), TORCH, 1.0, True),
    PlannedImport(FLASH_UTILS, ("transformers",), TRANSFORMERS, 1.0, True),
    PlannedImport(MODELING, ("transformers",), FLASH_UTILS, 1.0, True),
    PlannedImport("triton", ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "triton-windows")),
    PlannedImport("flash_attn_2_cuda", ("flash-attn",), TORCH, only_if_on_disk=True),
    PlannedImport("flash_attn", ("flash-attn",), TORCH),
    PlannedImport("flash_attn_interface", ("flash-attn-3",), TORCH),
    PlannedImport("flashattn_hopper_cuda", ("flashattn-hopper",), TORCH, only_if_on_disk=True),
    PlannedImport("flash_attn.cute", ("flash-attn-4",), TORCH),
    PlannedImport("ring_flash_attn", ("ring-flash-attn",), MODELING),
    PlannedImport("liger_kernel.transformers", ("liger-kernel",), MODELING),
    PlannedImport("openrlhf.models", ("openrlhf",), MODELING),
    PlannedImport("verl", ("verl",), MODELING),
    PlannedImport("peft", ("peft",), MODELING),
    PlannedImport("trl", ("trl",), MODELING),
    PlannedImport("xformers.ops", ("xformers",), TORCH),
    PlannedImport("causal_conv1d_cuda", ("causal-conv1d",), TORCH, only_if_on_disk=True),
    PlannedImport("selective_scan_cuda", ("mamba-ssm",), TORCH, only_if_on_disk=True),
    PlannedImport("transformer_engine.pytorch", ("transformer-engine", "transformer-engine-torch"), TORCH),
    PlannedImport("vllm._C", ("vllm",), TORCH, only_if_on_disk=True),
    PlannedImport("yunchang", ("yunchang",), TORCH),
    PlannedImport("kernels", ("kernels",), TORCH),
)
# liger_kernel.transformers loads its patches on first use (0.8.5, liger_kernel/transformers/__init__.py).
EXTRA_MODULES = {"liger_kernel.transformers": "liger_kernel.transformers.monkey_patch"}


def select_imports(installed: "set[str]") -> list[PlannedImport]:
    """Return the imports whose distribution is in `installed` (normalised names); extensions only if on disk."""
    return [
        planned
        for planned in PLAN
        if installed.intersection(planned.distributions) and (not planned.only_if_on_disk or is_on_disk(planned.module))
    ]


def is_on_disk(module: str) -> bool:
    """Return whether there is a file or folder for `module`, without importing anything."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    full_name, _, rest = module.partition(".")
    try:
        spec = find_spec(full_name)
        for name in rest.split(".") if rest else ():
            full_name += "." + name
            spec = PathFinder.find_spec(full_name, spec.submodule_search_locations) if spec is not None else None
    except Exception:  # the finder of an editable install may raise anything
        return False
    return spec is not None
