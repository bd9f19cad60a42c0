"""Cases for ATN104."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
CUDA_SYMBOL = "_ZN3c104cuda14ExchangeDeviceEa"


def on(version: str, cuda: str, **binary: object) -> Snapshot:
    """Return the recorded machine with this torch, flash-attn never imported, its extension as described."""
    base = s.torch(s.h200(), version=version, cuda=s.Known(cuda), hip=s.Absent(), cxx11_abi=s.Known(True))
    for module in ("flash_attn", "flash_attn_2_cuda"):
        base = s.imported(base, module, "skipped")
    return s.binary(base, "flash_attn_2_cuda", distribution="flash-attn", torch_symbols=68, **binary)


def loaded(outcome: str, message: str = "") -> Snapshot:
    """Return a torch 2.8 with CUDA 12.8 where importing flash-attn's extension ended so."""
    base = on("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,))
    for module in ("flash_attn_2_cuda", "flash_attn"):
        base = s.imported(base, module, outcome, exception="ImportError", message=message)
    return base


CPU = s.torch(s.laptop(), version="2.13.0+cpu", cuda=s.Absent("CPU"), hip=s.Absent("no ROCm"))
ON_CPU = s.binary(
    s.package(CPU, "flash-attn", "2.8.3"),
    "flash_attn_2_cuda",
    distribution="flash-attn",
    needed=("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.13"),
    unresolved=("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.13"),
    missing_symbols=(CUDA_SYMBOL,),
)

FIRES = {
    "static: a symbol is not exported": on("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,)),
    "the import says undefined symbol": loaded("raised", f"flash_attn_2_cuda.so: undefined symbol: {SYMBOL}"),
    "no wheel for this torch: a build": on("2.11.0+cu130", "13.0", missing_symbols=(SYMBOL,)),
    "a CPU torch": ON_CPU,
    "a CPU torch, imported": s.imported(
        ON_CPU,
        "flash_attn_2_cuda",
        "raised",
        exception="ImportError",
        message="libc10_cuda.so: cannot open shared object file: No such file or directory",
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it was imported: the static lane is wrong": loaded("ok"),
    "the loader says something else: ATN105": loaded(
        "raised", "libcudart.so.11.0: cannot open shared object file: No such file or directory"
    ),
    "torch itself is broken: ATN102": s.imported(
        on("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,)), "torch", "raised", message="libcudnn.so.9"
    ),
    "all symbols are there": on("2.8.0+cu128", "12.8", missing_symbols=()),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    if "CPU build" in finding:
        return "2.13.0+cpu" in finding
    wheel = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl" in finding
    build = "only" not in finding and "FLASH_ATTN_CUDA_ARCHS=90" in finding and "about" in finding
    return "c10::SymInt::sym_ne" in finding and (wheel or build)
