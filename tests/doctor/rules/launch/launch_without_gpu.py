"""Cases for ATN449."""

from tests import snapshots as s

FIRES = {"the laptop": s.with_job(s.with_gpus(s.laptop())), "all hidden": s.with_job(s.hide_gpus(s.h200(), 0))}
SILENT = {"no launch": s.laptop(), "a GPU": s.with_job(s.h200())}


def says(findings: str) -> bool:
    """Return whether the command for another machine is named."""
    return "--target" in findings
