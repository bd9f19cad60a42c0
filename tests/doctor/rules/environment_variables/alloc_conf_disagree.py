"""Cases for ATN555."""

from tests import snapshots as s

ON, OFF = "expandable_segments:True", "expandable_segments:False"

FIRES = {"they disagree": s.with_env(s.h200(), PYTORCH_ALLOC_CONF=ON, PYTORCH_CUDA_ALLOC_CONF=OFF)}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "they agree": s.with_env(s.h200(), PYTORCH_ALLOC_CONF=ON, PYTORCH_CUDA_ALLOC_CONF=ON),
    "in another order": s.with_env(
        s.h200(),
        PYTORCH_ALLOC_CONF="max_split_size_mb:128," + ON,
        PYTORCH_CUDA_ALLOC_CONF=ON + ", max_split_size_mb:128",
    ),
    "only the old name": s.with_env(s.h200(), PYTORCH_CUDA_ALLOC_CONF=ON),
    "only the new name": s.with_env(s.h200(), PYTORCH_ALLOC_CONF=ON),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in finding
