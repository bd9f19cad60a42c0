"""Cases for ATN206."""

from tests import snapshots as s

FIRES = {
    "V100": s.with_gpus(s.h200(), (7, 0)),
    "T4, the last below": s.with_gpus(s.h200(), (7, 5)),
    "one old GPU among new ones": s.with_gpus(s.h200(), (9, 0), (7, 5), (9, 0)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "A100, the first that will do": s.with_gpus(s.h200(), (8, 0)),
    "RTX 5090": s.with_gpus(s.h200(), (12, 0)),
    "old but hidden": s.with_gpus(s.h200(), (7, 5), visible=False),
    "capability not told": s.with_gpus(s.h200()),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the limit and a fix."""
    return "sm_80" in finding and 'attn_implementation="sdpa"' in finding
