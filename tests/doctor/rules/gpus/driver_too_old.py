"""Cases for ATN201."""

from tests import snapshots as s

# What was read from files alone: the import lane was not asked.
NOT_IMPORTED = s.with_torch(s.h200(), cuda_available=s.Unreadable("torch was not imported"))
CUDA_12 = s.with_torch(NOT_IMPORTED, version="2.8.0+cu128", cuda=s.Known("12.8"))
CUDA_FAILS = s.with_torch(
    s.h200(),
    cuda_available=s.Known(False),
    cuda_error=s.Known("CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."),
)

FIRES = {
    "CUDA 13 on an R550 driver": s.with_driver(NOT_IMPORTED, version="550.54.15", cuda=s.Known("12.4")),
    "CUDA 13 on the last R575 driver": s.with_driver(NOT_IMPORTED, version="575.57.08", cuda=s.Known("12.9")),
    "CUDA 12 on an R470 driver": s.with_driver(CUDA_12, version="470.82.01", cuda=s.Known("11.4")),
    "torch said so": s.with_driver(CUDA_FAILS, version="550.54.15", cuda=s.Known("12.4")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "CUDA 13 on the first R580 driver": s.with_driver(NOT_IMPORTED, version="580.65.06"),
    "CUDA 12.8 on R550: minor versions are compatible": s.with_driver(
        CUDA_12, version="550.54.15", cuda=s.Known("12.4")
    ),
    "cuda-compat bridges it: CUDA started": s.with_driver(
        s.with_torch(s.h200(), cuda_available=s.Known(True)), version="550.54.15", cuda=s.Known("12.4")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    install = "--index-url https://download.pytorch.org/whl/cu126" in finding or "cu128" in finding or "470." in finding
    followers = "cu126" not in finding or "reinstall the packages built for the old one: flash-attn" in finding
    return ("580" in finding or "525" in finding) and install and followers
