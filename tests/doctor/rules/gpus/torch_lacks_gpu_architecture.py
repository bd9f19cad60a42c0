"""Cases for ATN208."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

HOPPER_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90")
NO_KERNEL_RUN = s.Unreadable("no kernel was run")


def with_torch_targets(snapshot: Snapshot, version: str, cuda: str, *targets: str) -> Snapshot:
    """Install a torch compiled for these targets."""
    return s.with_torch(snapshot, version=version, cuda=s.Known(cuda), arch_list=s.Known(targets))


FIRES = {
    "CUDA 12.6 build on an RTX 5090": with_torch_targets(
        s.with_gpus(s.h200(), (12, 0), kernel=NO_KERNEL_RUN), "2.8.0+cu126", "12.6", *HOPPER_TARGETS
    ),
    "a kernel failed": with_torch_targets(
        s.with_gpus(s.h200(), (12, 0), kernel=s.Known("no kernel image is available")),
        "2.8.0+cu126",
        "12.6",
        *HOPPER_TARGETS,
    ),
    "CUDA 13 build on a V100": with_torch_targets(
        s.with_gpus(s.h200(), (7, 0), kernel=NO_KERNEL_RUN), "2.11.0+cu130", "13.0", *HOPPER_TARGETS
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "RTX 4090 runs sm_86 code": with_torch_targets(
        s.with_gpus(s.h200(), (8, 9), kernel=NO_KERNEL_RUN), "2.8.0+cu126", "12.6", *HOPPER_TARGETS
    ),
    "PTX goes forward": with_torch_targets(
        s.with_gpus(s.h200(), (12, 0), kernel=NO_KERNEL_RUN), "2.7.0+cu126", "12.6", *HOPPER_TARGETS, "compute_90"
    ),
    "a kernel ran": with_torch_targets(
        s.with_gpus(s.h200(), (12, 0), kernel=s.Known("ok")), "2.8.0+cu126", "12.6", *HOPPER_TARGETS
    ),
    "torch was not imported": s.with_torch(
        s.with_gpus(s.h200(), (12, 0), kernel=NO_KERNEL_RUN), arch_list=s.Unreadable("torch was not imported")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds a build that has the GPU."""
    return ("2.8.0+cu128" in finding or "2.8.0+cu129" in finding) or "2.11.0+cu126" in finding
