"""Cases for ATN805."""

from tests import snapshots as s

FIRES = {"left on": s.with_env(s.h200(), PYTORCH_NO_CUDA_MEMORY_CACHING="1")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "off": s.with_env(s.h200(), PYTORCH_NO_CUDA_MEMORY_CACHING="0"),
    "no GPU": s.with_env(s.laptop(), PYTORCH_NO_CUDA_MEMORY_CACHING="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset PYTORCH_NO_CUDA_MEMORY_CACHING" in finding
