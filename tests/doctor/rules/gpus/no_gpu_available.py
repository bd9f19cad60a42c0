"""Cases for ATN223."""

from dataclasses import replace

from tests import snapshots as s

STOPPED = s.torch(s.h200(), cuda_available=s.Known(False))
NONE = "nvidia-smi: No devices were found"

FIRES = {
    "a driver without a GPU": replace(STOPPED, devices=s.Absent(NONE)),
    "GPUs on the bus, no driver": replace(
        STOPPED, devices=s.Absent("8 NVIDIA GPUs on the PCI bus, but no driver"), driver=s.Absent("no driver")
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "no sign of NVIDIA at all": replace(STOPPED, devices=s.Absent("no GPU"), driver=s.Absent("no driver")),
    "a CPU build": replace(
        s.torch(STOPPED, version="2.11.0+cpu", cuda=s.Absent("not a CUDA build")), devices=s.Absent(NONE)
    ),
    "CUDA works": replace(s.torch(s.h200(), cuda_available=s.Known(True)), devices=s.Absent(NONE)),
}


def says(finding: str) -> bool:
    """Say whether the finding's text says what is missing."""
    return "no GPU is available" in finding and "--gpus" in finding
