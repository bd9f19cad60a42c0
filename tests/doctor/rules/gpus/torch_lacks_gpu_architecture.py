"""Cases for ATN208."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

HOPPER = ("sm_75", "sm_80", "sm_86", "sm_90")
UNTRIED = s.Unreadable("no kernel was run")


def built(snapshot: Snapshot, version: str, cuda: str, *targets: str) -> Snapshot:
    """Install a torch compiled for these targets."""
    return s.torch(snapshot, version=version, cuda=s.Known(cuda), arch_list=s.Known(targets))


FIRES = {
    "CUDA 12.6 build on an RTX 5090": built(s.gpus(s.h200(), (12, 0), kernel=UNTRIED), "2.8.0+cu126", "12.6", *HOPPER),
    "a kernel failed": built(
        s.gpus(s.h200(), (12, 0), kernel=s.Known("no kernel image is available")), "2.8.0+cu126", "12.6", *HOPPER
    ),
    "CUDA 13 build on a V100": built(s.gpus(s.h200(), (7, 0), kernel=UNTRIED), "2.11.0+cu130", "13.0", *HOPPER),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "RTX 4090 runs sm_86 code": built(s.gpus(s.h200(), (8, 9), kernel=UNTRIED), "2.8.0+cu126", "12.6", *HOPPER),
    "PTX goes forward": built(s.gpus(s.h200(), (12, 0), kernel=UNTRIED), "2.7.0+cu126", "12.6", *HOPPER, "compute_90"),
    "a kernel ran": built(s.gpus(s.h200(), (12, 0), kernel=s.Known("ok")), "2.8.0+cu126", "12.6", *HOPPER),
    "torch was not imported": s.torch(
        s.gpus(s.h200(), (12, 0), kernel=UNTRIED), arch_list=s.Unreadable("torch was not imported")
    ),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds a build that has the GPU."""
    return ("2.8.0+cu128" in finding or "2.8.0+cu129" in finding) or "2.11.0+cu126" in finding
