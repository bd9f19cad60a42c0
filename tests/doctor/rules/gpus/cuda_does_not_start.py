"""Cases for ATN203."""

from dataclasses import replace

from tests import snapshots as s

CUDA_FAILS = s.with_torch(
    s.h200(),
    cuda_available=s.Known(False),
    cuda_error=s.Known("CUDA unknown error - this may be due to an incorrectly set up environment (error 999)"),
)
COMPATIBILITY_ERROR = "Error 804: forward compatibility was attempted on non supported HW"
FABRIC_ERROR = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"

FIRES = {
    "an unknown error": CUDA_FAILS,
    "cuda-compat on a GPU that does not support it": s.with_env(
        s.with_torch(CUDA_FAILS, cuda_error=s.Known(COMPATIBILITY_ERROR)), LD_LIBRARY_PATH="/usr/local/cuda/compat"
    ),
    "no words at all": s.with_torch(CUDA_FAILS, cuda_error=s.Absent()),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "the driver is too old": s.with_driver(CUDA_FAILS, version="550.54.15"),
    "the fabric is down": s.with_torch(CUDA_FAILS, cuda_error=s.Known(FABRIC_ERROR)),
    "GPUs are hidden": s.with_gpus(CUDA_FAILS, (9, 0), visible=False),
    "a CPU build": s.with_torch(CUDA_FAILS, version="2.11.0+cpu", cuda=s.Absent("not a CUDA build")),
    "nobody tried": s.with_torch(CUDA_FAILS, cuda_available=s.Unreadable("torch was not imported")),
    "no GPU": replace(CUDA_FAILS, devices=s.Absent("no GPU")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds torch's message."""
    return "import lane" in finding and "fixes=(Fix" in finding
