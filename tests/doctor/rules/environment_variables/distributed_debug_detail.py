"""Cases for ATN804."""

from tests import snapshots as s

TWO_GPUS = s.with_gpus(s.h200(), (9, 0), (9, 0))

FIRES = {
    "left on": s.with_env(TWO_GPUS, TORCH_DISTRIBUTED_DEBUG="DETAIL"),
    "in small letters": s.with_env(TWO_GPUS, TORCH_DISTRIBUTED_DEBUG="detail"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "INFO costs nothing per step": s.with_env(TWO_GPUS, TORCH_DISTRIBUTED_DEBUG="INFO"),
    "one GPU": s.with_env(s.with_gpus(s.h200(), (9, 0)), TORCH_DISTRIBUTED_DEBUG="DETAIL"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset TORCH_DISTRIBUTED_DEBUG" in finding
