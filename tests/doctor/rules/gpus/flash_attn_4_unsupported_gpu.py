"""Cases for ATN219."""

from tests import snapshots as s

NEW = s.package(s.h200(), "flash-attn-4", "4.0.0b36")

FIRES = {
    "A100: no backward": s.gpus(NEW, (8, 0)),
    "RTX 4090: no backward": s.gpus(NEW, (8, 9)),
    "T4: nothing": s.gpus(NEW, (7, 5)),
    "another beta": s.gpus(s.package(s.h200(), "flash-attn-4", "4.0.0b20"), (8, 0)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "Hopper": s.gpus(NEW, (9, 0)),
    "Blackwell": s.gpus(NEW, (10, 0)),
    "RTX 5090": s.gpus(NEW, (12, 0)),
    "not installed": s.gpus(s.h200(), (8, 0)),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what is missing and what to use."""
    return "flash-attn-4" in finding and "attn_implementation=" in finding
