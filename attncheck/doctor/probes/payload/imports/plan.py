"""Which modules are imported, which distributions bring them, and what each needs imported first."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NamedTuple, Tuple

    class Entry(NamedTuple):
        """One module to import."""

        module: str
        distributions: Tuple[str, ...]
        parent: str = ""
        share: float = 0.5
        nursery: bool = False
        only_if_present: bool = False

else:
    from collections import namedtuple

    Entry = namedtuple("Entry", "module distributions parent share nursery only_if_present")
    Entry.__new__.__defaults__ = ("", 0.5, False, False)

TORCH, TRANSFORMERS = "torch", "transformers"
FLASH = "transformers.modeling_flash_attention_utils"
MODELING = "transformers.modeling_utils"

# `parent` is imported first and once; `share` of the deadline is the module's own, the rest is for a second try.
# Extension modules are tried only where the file is there: a ROCm flash-attn has no flash_attn_2_cuda, and later
# vllm releases split vllm._C. Of vllm it is this extension, not the package, that tells whether the binary loads:
# `import vllm` before 0.8 imported the whole engine (10 s), later it is lazy and loads no extension at all.
# deepspeed, flashinfer and unsloth are left out: importing them writes caches or patches others.
PLAN = (
    Entry(TORCH, ("torch",), "", 1.0, True),
    Entry(TRANSFORMERS, ("transformers",), TORCH, 1.0, True),
    Entry(FLASH, ("transformers",), TRANSFORMERS, 1.0, True),
    Entry(MODELING, ("transformers",), FLASH, 1.0, True),
    Entry("triton", ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "triton-windows")),
    Entry("flash_attn_2_cuda", ("flash-attn",), TORCH, only_if_present=True),
    Entry("flash_attn", ("flash-attn",), TORCH),
    Entry("flash_attn_interface", ("flash-attn-3",), TORCH),
    Entry("flashattn_hopper_cuda", ("flashattn-hopper",), TORCH, only_if_present=True),
    Entry("flash_attn.cute", ("flash-attn-4",), TORCH),
    Entry("ring_flash_attn", ("ring-flash-attn",), MODELING),
    Entry("liger_kernel.transformers", ("liger-kernel",), MODELING),
    Entry("openrlhf.models", ("openrlhf",), MODELING),
    Entry("verl", ("verl",), MODELING),
    Entry("peft", ("peft",), MODELING),
    Entry("trl", ("trl",), MODELING),
    Entry("xformers.ops", ("xformers",), TORCH),
    Entry("causal_conv1d_cuda", ("causal-conv1d",), TORCH, only_if_present=True),
    Entry("selective_scan_cuda", ("mamba-ssm",), TORCH, only_if_present=True),
    Entry("transformer_engine.pytorch", ("transformer-engine", "transformer-engine-torch"), TORCH),
    Entry("vllm._C", ("vllm",), TORCH, only_if_present=True),
    Entry("yunchang", ("yunchang",), TORCH),
    Entry("kernels", ("kernels",), TORCH),
)
# liger_kernel.transformers loads its patches when first asked for (0.8.5, liger_kernel/transformers/__init__.py).
ALSO = {"liger_kernel.transformers": "liger_kernel.transformers.monkey_patch"}


def chosen(installed: "set[str]") -> List[Entry]:
    """Return the entries whose distribution is `installed` (normalised names), extensions only where on disk."""
    return [
        entry
        for entry in PLAN
        if installed.intersection(entry.distributions) and (not entry.only_if_present or on_disk(entry.module))
    ]


def on_disk(module: str) -> bool:
    """Say whether there is a file or folder for `module`, importing nothing."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, _, rest = module.partition(".")
    try:
        spec = find_spec(top)
        for name in rest.split(".") if rest else ():
            top += "." + name
            spec = PathFinder.find_spec(top, spec.submodule_search_locations) if spec is not None else None
    except Exception:  # a finder of an editable install may do anything
        return False
    return spec is not None
