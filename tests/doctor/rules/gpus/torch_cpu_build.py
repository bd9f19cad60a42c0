"""Cases for ATN205."""

from tests import snapshots as s

CPU = s.torch(s.h200(), version="2.11.0+cpu", cuda=s.Absent("not a CUDA build"), hip=s.Absent("not a ROCm build"))

FIRES = {
    "beside an H200 on R580": s.driver(CPU, version="580.159.04", cuda=s.Known("13.0")),
    "beside an H200 on R550": s.driver(CPU, version="550.54.15", cuda=s.Known("12.4")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "a ROCm build": s.torch(CPU, version="2.11.0+rocm7.0", hip=s.Known("7.0")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds the right build for the driver."""
    right = "torch==2.11.0+cu126" if "550.54" in finding else "torch==2.11.0+cu1"
    return right in finding and "--index-url https://download.pytorch.org/whl/cu1" in finding
