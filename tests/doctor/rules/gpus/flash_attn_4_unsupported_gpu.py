"""Cases for ATN219."""

from tests import snapshots as s

WITH_FLASH_ATTN_4 = s.with_package(s.h200(), "flash-attn-4", "4.0.0b36")

FIRES = {
    "A100: no backward": s.with_gpus(WITH_FLASH_ATTN_4, (8, 0)),
    "RTX 4090: no backward": s.with_gpus(WITH_FLASH_ATTN_4, (8, 9)),
    "T4: nothing": s.with_gpus(WITH_FLASH_ATTN_4, (7, 5)),
    "another beta": s.with_gpus(s.with_package(s.h200(), "flash-attn-4", "4.0.0b20"), (8, 0)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "Hopper": s.with_gpus(WITH_FLASH_ATTN_4, (9, 0)),
    "Blackwell": s.with_gpus(WITH_FLASH_ATTN_4, (10, 0)),
    "RTX 5090": s.with_gpus(WITH_FLASH_ATTN_4, (12, 0)),
    "not installed": s.with_gpus(s.h200(), (8, 0)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what is missing and what to use."""
    return "flash-attn-4" in finding and "attn_implementation=" in finding
