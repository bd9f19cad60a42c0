"""Cases for ATN449."""

from tests import snapshots as s

FIRES = {"the laptop": s.job(s.gpus(s.laptop())), "all hidden": s.job(s.hide(s.h200(), 0))}
SILENT = {"no launch": s.laptop(), "a GPU": s.job(s.h200())}


def says(findings: str) -> bool:
    """Say whether the way to another machine is told."""
    return "--target" in findings
