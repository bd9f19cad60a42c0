"""Cases for ATN561."""

from tests import snapshots as s

FIRES = {"left on": s.with_env(s.h200(), CUDA_LAUNCH_BLOCKING="1")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it is 0": s.with_env(s.h200(), CUDA_LAUNCH_BLOCKING="0"),
    "no GPU": s.with_env(s.laptop(), CUDA_LAUNCH_BLOCKING="1"),
    "determinism is requested": s.with_env(s.h200(), CUDA_LAUNCH_BLOCKING="1", FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset CUDA_LAUNCH_BLOCKING" in finding
