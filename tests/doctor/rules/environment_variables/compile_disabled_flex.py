"""Cases for ATN802."""

from tests import snapshots as s

FIRES = {
    "the new name": s.with_env(s.h200(), TORCH_COMPILE_DISABLE="1"),
    "the old name": s.with_env(s.h200(), TORCHDYNAMO_DISABLE="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "0": s.with_env(s.h200(), TORCH_COMPILE_DISABLE="0"),
    "no GPU": s.with_env(s.laptop(), TORCH_COMPILE_DISABLE="1"),
    "no transformers": s.with_env(s.without_packages(s.h200(), "transformers"), TORCH_COMPILE_DISABLE="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset TORCH" in finding
