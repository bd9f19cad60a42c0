"""Cases for ATN702."""

from tests import snapshots as s

FIRES = {
    "the colon is missing": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG="4096:8"),
    "a switch instead of a size": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG="1"),
    "no workspace, and determinism wanted": s.with_env(
        s.h200(), CUBLAS_WORKSPACE_CONFIG=":0:0", FLASH_ATTENTION_DETERMINISTIC="1"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the large one": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "the small one": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":16:8", FLASH_ATTENTION_DETERMINISTIC="1"),
    "tuned for memory": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":0:0"),
    "cuBLAS's own default": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":4096:2:16:8"),
    "not set": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "export CUBLAS_WORKSPACE_CONFIG=:4096:8" in finding
