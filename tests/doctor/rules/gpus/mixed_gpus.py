"""Cases for ATN210."""

from tests import snapshots as s

FIRES = {
    "A100 alongside H100": s.with_gpus(s.h200(), (8, 0), (9, 0)),
    "one old card": s.with_gpus(s.h200(), (8, 6), (8, 6), (7, 5)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "eight alike": s.with_gpus(s.h200(), *[(9, 0)] * 8),
}


def says(finding: str) -> bool:
    """Return whether the finding's text chooses one kind."""
    return "export CUDA_VISIBLE_DEVICES=" in finding and "PCI_BUS_ID" in finding
