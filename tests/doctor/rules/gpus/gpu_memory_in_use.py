"""Cases for ATN211."""

from tests import snapshots as s

GIB = 1 << 30

FIRES = {
    "half of it is taken": s.with_gpus(s.h200(), (9, 0), memory_free_bytes=s.Known(40 * GIB)),
    "just over 15 %": s.with_gpus(s.h200(), (9, 0), memory_free_bytes=s.Known(67 * GIB)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "just under 15 %": s.with_gpus(s.h200(), (9, 0), memory_free_bytes=s.Known(69 * GIB)),
    "a desktop on a small card": s.with_gpus(
        s.h200(), (8, 6), memory_total_bytes=s.Known(8 * GIB), memory_free_bytes=s.Known(6 * GIB + GIB // 2)
    ),
    "not told (shared memory)": s.with_gpus(s.h200(), (12, 1), memory_free_bytes=s.Unreadable("[N/A]")),
    "MIG": s.with_gpus(s.h200(), (9, 0), memory_free_bytes=s.Known(40 * GIB), mig=s.Known(True)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text says how to find the faulty package."""
    return "--query-compute-apps" in finding and "GiB" in finding
