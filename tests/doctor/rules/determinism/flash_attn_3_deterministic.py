"""Cases for ATN706."""

from tests import snapshots as s

WITH_FLASH_ATTN_3 = s.with_package(s.h200(), "flash-attn-3", "3.0.0b1")

FIRES = {
    "FA3 in a run that should repeat": s.with_env(WITH_FLASH_ATTN_3, FLASH_ATTENTION_DETERMINISTIC="1"),
    "under its old name": s.with_env(
        s.with_package(s.h200(), "flashattn-hopper", "3.0.0b1"), FLASH_ATTENTION_DETERMINISTIC="1"
    ),
    "alone": s.with_env(s.with_package(s.laptop(), "flash-attn-3", "3.0.0b1"), FLASH_ATTENTION_DETERMINISTIC="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "nobody asks for determinism": WITH_FLASH_ATTN_3,
    "FA2": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    return "attn_implementation" in finding
