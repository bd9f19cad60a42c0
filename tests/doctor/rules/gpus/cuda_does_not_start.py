"""Cases for ATN203."""

from dataclasses import replace

from tests import snapshots as s

STOPPED = s.torch(
    s.h200(),
    cuda_available=s.Known(False),
    cuda_error=s.Known("CUDA unknown error - this may be due to an incorrectly set up environment (error 999)"),
)
FORWARD = "Error 804: forward compatibility was attempted on non supported HW"
FABRIC = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"

FIRES = {
    "an unknown error": STOPPED,
    "cuda-compat on a GPU that does not support it": s.env(
        s.torch(STOPPED, cuda_error=s.Known(FORWARD)), LD_LIBRARY_PATH="/usr/local/cuda/compat"
    ),
    "no words at all": s.torch(STOPPED, cuda_error=s.Absent()),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "the driver is too old": s.driver(STOPPED, version="550.54.15"),
    "the fabric is down": s.torch(STOPPED, cuda_error=s.Known(FABRIC)),
    "GPUs are hidden": s.gpus(STOPPED, (9, 0), visible=False),
    "a CPU build": s.torch(STOPPED, version="2.11.0+cpu", cuda=s.Absent("not a CUDA build")),
    "nobody tried": s.torch(STOPPED, cuda_available=s.Unreadable("torch was not imported")),
    "no GPU": replace(STOPPED, devices=s.Absent("no GPU")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds torch's words."""
    return "import lane" in finding and "fixes=(Fix" in finding
