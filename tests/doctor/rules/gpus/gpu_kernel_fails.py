"""Cases for ATN212."""

from tests import snapshots as s

FIRES = {
    "the GPU has an uncorrectable error": s.with_gpus(
        s.h200(), (9, 0), kernel=s.Known("AcceleratorError: CUDA error: uncorrectable ECC error encountered")
    ),
    "a wrong sum": s.with_gpus(s.h200(), (9, 0), kernel=s.Known("a 64x64 product sums to 12.0, not 43.0")),
    "busy": s.with_gpus(s.h200(), (9, 0), kernel=s.Known("OutOfMemoryError: CUDA out of memory")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "no kernel was run": s.with_gpus(s.h200(), (9, 0), kernel=s.Unreadable("no kernel was run")),
    "torch has no code for it: another rule's": s.with_torch(
        s.with_gpus(s.h200(), (12, 0), kernel=s.Known("no kernel image is available")),
        arch_list=s.Known(("sm_80", "sm_90")),
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the GPU and where to look."""
    return "GPU 0" in finding and "import lane" in finding and "dmesg" in finding
