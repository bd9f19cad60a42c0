"""Cases for ATN104."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
CUDA_SYMBOL = "_ZN3c104cuda14ExchangeDeviceEa"


def with_flash_attn_extension(version: str, cuda: str, **binary: object) -> Snapshot:
    """Return the recorded machine with this torch, flash-attn never imported, its extension changed by `binary`."""
    base = s.with_torch(s.h200(), version=version, cuda=s.Known(cuda), hip=s.Absent(), cxx11_abi=s.Known(True))
    for module in ("flash_attn", "flash_attn_2_cuda"):
        base = s.with_import(base, module, "skipped")
    return s.with_binary(base, "flash_attn_2_cuda", distribution="flash-attn", torch_symbols=68, **binary)


def with_extension_import(outcome: str, message: str = "") -> Snapshot:
    """Return a torch 2.8 with CUDA 12.8 if importing flash-attn's extension had this outcome."""
    base = with_flash_attn_extension("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,))
    for module in ("flash_attn_2_cuda", "flash_attn"):
        base = s.with_import(base, module, outcome, exception="ImportError", message=message)
    return base


CPU_TORCH = s.with_torch(s.laptop(), version="2.13.0+cpu", cuda=s.Absent("CPU"), hip=s.Absent("no ROCm"))
FLASH_ATTN_ON_CPU_TORCH = s.with_binary(
    s.with_package(CPU_TORCH, "flash-attn", "2.8.3"),
    "flash_attn_2_cuda",
    distribution="flash-attn",
    needed=("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.13"),
    unresolved=("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.13"),
    missing_symbols=(CUDA_SYMBOL,),
)

WITH_BROKEN_TORCH = s.with_import(
    with_flash_attn_extension("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,)),
    "torch",
    "raised",
    message="libcudnn.so.9",
)

LACKING_SYMBOL = with_flash_attn_extension("2.8.0+cu128", "12.8", missing_symbols=(SYMBOL,))
HUB = "kernels-community/flash-attn2"

FIRES = {
    "a launch of it": s.with_trl_job(LACKING_SYMBOL, "flash_attention_2"),
    "a launch that imports it whatever it requires": s.with_trl_job(LACKING_SYMBOL, HUB, imports=("flash_attn",)),
    "a launch of flash-attn 3, whose transformers imports both": s.with_trl_job(
        s.with_package(LACKING_SYMBOL, "transformers", "4.53.3"), "flash_attention_3"
    ),
    "verl, which imports it with some models": s.with_job(
        LACKING_SYMBOL, {"attn_implementation": "flash_attention_3"}, framework="verl", imports=()
    ),
    "a launch by a name that is not known": s.with_trl_job(LACKING_SYMBOL, "flash_attention"),
    "the user's own script": s.with_job(LACKING_SYMBOL, {"attn_implementation": HUB}, framework="transformers"),
    "torch cannot be imported, and its files tell": WITH_BROKEN_TORCH,
    "static: a symbol is not exported": LACKING_SYMBOL,
    "the import says undefined symbol": with_extension_import(
        "raised", f"flash_attn_2_cuda.so: undefined symbol: {SYMBOL}"
    ),
    "no wheel for this torch: a build": with_flash_attn_extension("2.11.0+cu130", "13.0", missing_symbols=(SYMBOL,)),
    "a CPU torch": FLASH_ATTN_ON_CPU_TORCH,
    "a CPU torch, imported": s.with_import(
        FLASH_ATTN_ON_CPU_TORCH,
        "flash_attn_2_cuda",
        "raised",
        exception="ImportError",
        message="libc10_cuda.so: cannot open shared object file: No such file or directory",
    ),
}
SILENT = {
    "a launch of the Hub's kernel": s.with_trl_job(LACKING_SYMBOL, HUB),
    "a launch of flash-attn 3": s.with_trl_job(LACKING_SYMBOL, "flash_attention_3"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it was imported: the static lane is wrong": with_extension_import("ok"),
    "the loader says something else: ATN105": with_extension_import(
        "raised", "libcudart.so.11.0: cannot open shared object file: No such file or directory"
    ),
    "torch itself is broken, and lacks its own library: ATN102": s.with_package(
        WITH_BROKEN_TORCH, "torch", "2.8.0+cu128", files_missing=("torch/lib/libtorch_cpu.so",)
    ),
    "all symbols are there": with_flash_attn_extension("2.8.0+cu128", "12.8", missing_symbols=()),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    if "CPU build" in finding:
        return "2.13.0+cpu" in finding
    wheel = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl" in finding
    build = "only" not in finding and "FLASH_ATTN_CUDA_ARCHS=90" in finding and "about" in finding
    return "c10::SymInt::sym_ne" in finding and (wheel or build)
