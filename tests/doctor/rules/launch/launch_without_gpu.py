"""Cases for ATN449."""

from dataclasses import replace

from attncheck.core.facts import Absent
from attncheck.core.snapshot import NOT_ASKED
from tests import snapshots as s

FIRES = {"the laptop": s.with_job(s.with_gpus(s.laptop())), "all hidden": s.with_job(s.hide_gpus(s.h200(), 0))}
SILENT = {
    "no launch": s.laptop(),
    "a GPU": s.with_job(s.h200()),
    "nobody looked for GPUs": replace(s.with_job(s.laptop()), devices=Absent(NOT_ASKED)),
}


def says(findings: str) -> bool:
    """Return whether the command for another machine is named."""
    return "--target" in findings
