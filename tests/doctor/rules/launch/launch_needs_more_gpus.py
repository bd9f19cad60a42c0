"""Cases for ATN447."""

from tests import snapshots as s

FOUR_GPUS = s.with_gpus(s.h200(), (9, 0), (9, 0), (9, 0), (9, 0))
FIRES = {
    "eight on one": s.with_job(s.h200(), gpus=s.Known(8)),
    "verl under Ray": s.with_job(s.h200(), framework="verl", gpus=s.Known(2), reinforcement=True),
    "nine on two nodes of four": s.with_job(FOUR_GPUS, gpus=s.Known(9), nodes=2),
    "one of two is hidden": s.with_job(s.hide_gpus(s.with_gpus(s.h200(), (9, 0), (9, 0)), 1), gpus=s.Known(2)),
}
SILENT = {
    "no launch": s.h200(),
    "as many as there are": s.with_job(s.h200()),
    "eight on two nodes of four": s.with_job(FOUR_GPUS, gpus=s.Known(8), nodes=2),
    "a Ray cluster of any size": s.with_job(s.h200(), framework="openrlhf", gpus=s.Known(2), reinforcement=True),
    "not known": s.with_job(s.h200(), gpus=s.Absent("nothing says")),
    "no GPU at all": s.with_job(s.laptop(), gpus=s.Known(8)),
}


def says(findings: str) -> bool:
    """Return whether both numbers' consequence is named."""
    return "needs " in findings and "GPU" in findings
