"""Cases for ATN223."""

from dataclasses import replace

from tests import snapshots as s

CUDA_FAILS = s.with_torch(s.h200(), cuda_available=s.Known(False))
NO_DEVICES = "nvidia-smi: No devices were found"

FIRES = {
    "a driver without a GPU": replace(CUDA_FAILS, devices=s.Absent(NO_DEVICES)),
    "GPUs on the bus, no driver": replace(
        CUDA_FAILS, devices=s.Absent("8 NVIDIA GPUs on the PCI bus, but no driver"), driver=s.Absent("no driver")
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "no sign of NVIDIA at all": replace(CUDA_FAILS, devices=s.Absent("no GPU"), driver=s.Absent("no driver")),
    "a CPU build": replace(
        s.with_torch(CUDA_FAILS, version="2.11.0+cpu", cuda=s.Absent("not a CUDA build")), devices=s.Absent(NO_DEVICES)
    ),
    "CUDA works": replace(s.with_torch(s.h200(), cuda_available=s.Known(True)), devices=s.Absent(NO_DEVICES)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text says what is missing."""
    return "no GPU is available" in finding and "--gpus" in finding
