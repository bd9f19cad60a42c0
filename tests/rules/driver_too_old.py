"""Cases for ATN201."""

from tests import snapshots as s

FIRES = {
    "CUDA 13 on an R550 driver": s.driver(s.h200(), version="550.54.15"),
    "CUDA 12 on an R470 driver": s.driver(
        s.torch(s.h200(), version="2.8.0+cu128", cuda=s.Known("12.8")), version="470.82.01"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "CUDA 12.8 on R550: minor versions are compatible": s.driver(
        s.torch(s.h200(), version="2.8.0+cu128", cuda=s.Known("12.8")), version="550.54.15"
    ),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "580" in finding or "525" in finding
