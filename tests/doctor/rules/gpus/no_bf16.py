"""Cases for ATN209."""

from tests import snapshots as s

FIRES = {
    "V100": s.with_gpus(s.h200(), (7, 0)),
    "T4 and a bfloat16 model": s.with_model(s.with_gpus(s.h200(), (7, 5)), dtype=s.Known("bfloat16")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "A100, the first with bfloat16": s.with_gpus(s.h200(), (8, 0)),
    "a float16 model": s.with_model(s.with_gpus(s.h200(), (7, 5)), dtype=s.Known("float16")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    return "float16" in finding
