"""Cases for ATN559."""

from tests import snapshots as s

FIRES = {
    "LLaMA-Factory's": s.with_env(s.with_package(s.h200(), "llamafactory", "0.9.4"), DISABLE_VERSION_CHECK="1"),
    "transformers'": s.with_env(s.h200(), TRANSFORMERS_DISABLE_TORCH_CHECK="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "no LLaMA-Factory": s.with_env(s.h200(), DISABLE_VERSION_CHECK="1"),
    "set to 0": s.with_env(s.h200(), TRANSFORMERS_DISABLE_TORCH_CHECK="0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset " in finding
