"""Cases for ATN202."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

MISMATCH = "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"
SHOWN = "; 8 GPUs in /proc/driver/nvidia/gpus"
STOPPED = s.torch(s.h200(), cuda_available=s.Known(False))


def broken(snapshot: Snapshot, reason: str) -> Snapshot:
    """Let nvidia-smi fail beside a GPU."""
    return replace(snapshot, devices=s.Unreadable(reason), driver=s.Unreadable(reason), topology=s.Unreadable(reason))


FIRES = {
    "libraries were updated without a reboot": broken(STOPPED, MISMATCH + SHOWN),
    "it hangs": broken(STOPPED, "nvidia-smi: it did not answer within 10 s and was stopped" + SHOWN),
    "the module is not loaded": broken(
        STOPPED,
        "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.; "
        "1 NVIDIA GPU on the PCI bus",
    ),
    "there is no nvidia-smi, and NVML says so": broken(STOPPED, "NVML: Driver/library version mismatch"),
    "CUDA works all the same": broken(s.torch(s.h200(), cuda_available=s.Known(True)), MISMATCH + SHOWN),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "it fails where nothing shows a GPU": replace(STOPPED, devices=s.Absent(MISMATCH)),
    "the lane was lost": replace(STOPPED, devices=s.Unreadable("the device lane gave no answer")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds nvidia-smi's words and a way out."""
    return ("nvidia-smi" in finding or "NVML" in finding) and "sudo" in finding
