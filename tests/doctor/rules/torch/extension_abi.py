"""Cases for ATN125."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

SYMBOL = "_ZN5torch8autograd4NodeE"


def with_broken_extension(
    name: str, module: str, requires: tuple[str, ...] = (), base: Snapshot | None = None
) -> Snapshot:
    """Return an environment if an extension asks torch for something it does not export."""
    installed = s.with_package(base or s.h200(), name, "1.0", requires=requires)
    return s.with_binary(installed, module, distribution=name, torch_symbols=40, missing_symbols=(SYMBOL,))


CAUSAL_CONV1D = with_broken_extension("causal-conv1d", "causal_conv1d_cuda")

FIRES = {
    "causal-conv1d, static": CAUSAL_CONV1D,
    "causal-conv1d, imported": s.with_import(
        CAUSAL_CONV1D, "causal_conv1d_cuda", "raised", exception="ImportError", message=f"undefined symbol: {SYMBOL}"
    ),
    "mamba-ssm, whose package imports anyway": s.with_import(
        with_broken_extension("mamba-ssm", "selective_scan_cuda", ("torch",)), "mamba_ssm"
    ),
    "vllm that names no torch": with_broken_extension("vllm", "vllm._C"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it was imported": s.with_import(CAUSAL_CONV1D, "causal_conv1d_cuda"),
    "flash-attn: ATN104": s.with_binary(s.h200(), "flash_attn_2_cuda", missing_symbols=(SYMBOL,)),
    "xformers: ATN123": with_broken_extension("xformers", "xformers._C", ("torch==2.10.0",)),
    "vllm that names another torch: ATN156": with_broken_extension("vllm", "vllm._C", ("torch==2.8.0",)),
    "a CPU torch lacks everything about CUDA": with_broken_extension(
        "causal-conv1d", "causal_conv1d_cuda", base=s.laptop()
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "was not built for torch 2.11.0+cu130" in finding and "install" in finding
