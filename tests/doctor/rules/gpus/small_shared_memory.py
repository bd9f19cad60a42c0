"""Cases for ATN222."""

from tests import snapshots as s

MIB = 1 << 20
TWO_GPUS = s.with_gpus(s.h200(), (9, 0), (9, 0))

FIRES = {
    "Docker's 64 MiB": s.with_host(TWO_GPUS, shm_bytes=s.Known(64 * MIB)),
    "just below": s.with_host(TWO_GPUS, shm_bytes=s.Known(511 * MIB)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.with_host(s.laptop(), shm_bytes=s.Known(64 * MIB)),
    "enough": s.with_host(TWO_GPUS, shm_bytes=s.Known(512 * MIB)),
    "one GPU": s.with_host(s.with_gpus(s.h200(), (9, 0)), shm_bytes=s.Known(64 * MIB)),
    "none to be seen": s.with_host(TWO_GPUS, shm_bytes=s.Absent("there is no /dev/shm")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the option."""
    return "--shm-size" in finding and "MiB" in finding
