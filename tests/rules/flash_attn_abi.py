"""Cases for ATN104."""

from dataclasses import replace

from attncheck.snapshot import Snapshot
from tests import snapshots as s

SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
EXTENSION = "flash_attn_2_cuda"


def static(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, imports=s.Absent("not asked for"))


OTHER_TORCH = s.binary(s.h200(), EXTENSION, missing_symbols=(SYMBOL,))
RAISED = s.imported(
    s.h200(), EXTENSION, "raised", exception="ImportError", message=f"{EXTENSION}.so: undefined symbol: {SYMBOL}"
)
CPU_TORCH = s.torch(s.h200(), version="2.11.0+cpu", cuda=s.Absent("not a CUDA build"), hip=s.Absent("not ROCm"))
FIRES = {
    "the installed torch lacks a symbol": static(OTHER_TORCH),
    "the import says so": RAISED,
    "torch is a CPU build": static(CPU_TORCH),
    "torch is a CPU build and the import says so": s.imported(
        CPU_TORCH,
        EXTENSION,
        "raised",
        exception="ImportError",
        message="libc10_cuda.so: cannot open shared object file: No such file or directory",
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a laptop without flash-attn": s.laptop(),
    "the file alone": static(s.h200()),
    "the import works all the same": OTHER_TORCH,
    "torch itself cannot be imported": s.imported(
        RAISED, "torch", "raised", exception="ImportError", message="libcudnn.so.9: cannot open shared object file"
    ),
    "torch is not installed": replace(s.without(static(OTHER_TORCH), "torch"), torch=s.Absent("torch is not there")),
    "another library is missing": s.imported(
        s.h200(),
        EXTENSION,
        "raised",
        exception="ImportError",
        message="libcudart.so.12: cannot open shared object file",
    ),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    symbol = "c10::SymInt::sym_ne" in finding and "flash-attn==2.8.3.post1" in finding
    return symbol or "is built without CUDA" in finding
