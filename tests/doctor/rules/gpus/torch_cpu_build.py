"""Cases for ATN205."""

from tests import snapshots as s

CPU_TORCH = s.with_torch(
    s.h200(), version="2.11.0+cpu", cuda=s.Absent("not a CUDA build"), hip=s.Absent("not a ROCm build")
)

FIRES = {
    "alongside an H200 on R580": s.with_driver(CPU_TORCH, version="580.159.04", cuda=s.Known("13.0")),
    "alongside an H200 on R550": s.with_driver(CPU_TORCH, version="550.54.15", cuda=s.Known("12.4")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "a ROCm build": s.with_torch(CPU_TORCH, version="2.11.0+rocm7.0", hip=s.Known("7.0")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the right build for the driver."""
    right = "torch==2.11.0+cu126" if "550.54" in finding else "torch==2.11.0+cu1"
    return right in finding and "--index-url https://download.pytorch.org/whl/cu1" in finding
