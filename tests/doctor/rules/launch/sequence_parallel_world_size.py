"""Cases for ATN571."""

from tests import snapshots as s

RING = {"ring_size": 3}
FIRES = {
    "three of four": s.with_job(s.h200x2(), RING, world_size=s.Known(4)),
    "more than there are": s.with_job(s.h200x2(), {"ring_size": 8}, world_size=s.Known(4)),
    "with tensor parallelism": s.with_job(s.h200x2(), {"ring_size": 2}, tensor_parallel=4, world_size=s.Known(4)),
}
SILENT = {
    "no launch": s.h200x2(),
    "it divides": s.with_job(s.h200x2(), {"ring_size": 2}, world_size=s.Known(4)),
    "no parallelism": s.with_job(s.h200x2(), world_size=s.Known(3)),
    "nobody knows": s.with_job(s.h200x2(), RING, world_size=s.Absent("nothing says")),
}


def says(findings: str) -> bool:
    """Return whether the processes are named."""
    return "4 training processes" in findings
