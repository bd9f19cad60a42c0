"""Cases for ATN125."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

SYMBOL = "_ZN5torch8autograd4NodeE"


def broken(name: str, module: str, requires: tuple[str, ...] = (), base: Snapshot | None = None) -> Snapshot:
    """Return an environment where an extension asks torch for something it does not export."""
    found = s.package(base or s.h200(), name, "1.0", requires=requires)
    return s.binary(found, module, distribution=name, torch_symbols=40, missing_symbols=(SYMBOL,))


CAUSAL = broken("causal-conv1d", "causal_conv1d_cuda")

FIRES = {
    "causal-conv1d, static": CAUSAL,
    "causal-conv1d, imported": s.imported(
        CAUSAL, "causal_conv1d_cuda", "raised", exception="ImportError", message=f"undefined symbol: {SYMBOL}"
    ),
    "mamba-ssm, whose package imports all the same": s.imported(
        broken("mamba-ssm", "selective_scan_cuda", ("torch",)), "mamba_ssm"
    ),
    "vllm that names no torch": broken("vllm", "vllm._C"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it was imported": s.imported(CAUSAL, "causal_conv1d_cuda"),
    "flash-attn: ATN104": s.binary(s.h200(), "flash_attn_2_cuda", missing_symbols=(SYMBOL,)),
    "xformers: ATN123": broken("xformers", "xformers._C", ("torch==2.10.0",)),
    "vllm that names another torch: ATN156": broken("vllm", "vllm._C", ("torch==2.8.0",)),
    "a CPU torch lacks everything about CUDA": broken("causal-conv1d", "causal_conv1d_cuda", base=s.laptop()),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "was built for another torch than 2.11.0+cu130" in finding and "install" in finding
