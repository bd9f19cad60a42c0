"""Cases for ATN202."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

MISMATCH = "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"
PROC_GPUS = "; 8 GPUs in /proc/driver/nvidia/gpus"
CUDA_FAILS = s.with_torch(s.h200(), cuda_available=s.Known(False))


def with_failing_nvidia_smi(snapshot: Snapshot, reason: str) -> Snapshot:
    """Let nvidia-smi fail alongside a GPU."""
    return replace(snapshot, devices=s.Unreadable(reason), driver=s.Unreadable(reason), topology=s.Unreadable(reason))


FIRES = {
    "libraries were updated without a reboot": with_failing_nvidia_smi(CUDA_FAILS, MISMATCH + PROC_GPUS),
    "it hangs": with_failing_nvidia_smi(
        CUDA_FAILS, "nvidia-smi: it did not answer within 10 s and was stopped" + PROC_GPUS
    ),
    "the module is not loaded": with_failing_nvidia_smi(
        CUDA_FAILS,
        "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.; "
        "1 NVIDIA GPU on the PCI bus",
    ),
    "there is no nvidia-smi, and NVML says so": with_failing_nvidia_smi(
        CUDA_FAILS, "NVML: Driver/library version mismatch"
    ),
    "CUDA works anyway": with_failing_nvidia_smi(
        s.with_torch(s.h200(), cuda_available=s.Known(True)), MISMATCH + PROC_GPUS
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "it fails if nothing shows a GPU": replace(CUDA_FAILS, devices=s.Absent(MISMATCH)),
    "the lane was lost": replace(CUDA_FAILS, devices=s.Unreadable("the device lane did not answer")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds nvidia-smi's message and a fix."""
    return ("nvidia-smi" in finding or "NVML" in finding) and "sudo" in finding
