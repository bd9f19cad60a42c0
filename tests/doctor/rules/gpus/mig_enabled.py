"""Cases for ATN214."""

from tests import snapshots as s

FIRES = {"one GPU in MIG mode": s.with_gpus(s.h200(), (9, 0), mig=s.Known(True))}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "MIG off": s.with_gpus(s.h200(), (9, 0), mig=s.Known(False)),
    "not told": s.with_gpus(s.h200(), (9, 0), mig=s.Unreadable()),
    "hidden": s.with_gpus(s.h200(), (9, 0), mig=s.Known(True), visible=False),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the mode and a fix."""
    return "MIG" in finding and "-mig 0" in finding
