"""Cases for ATN706."""

from tests import snapshots as s

THREE = s.package(s.h200(), "flash-attn-3", "3.0.0b1")

FIRES = {
    "FA3 in a run that shall repeat": s.env(THREE, FLASH_ATTENTION_DETERMINISTIC="1"),
    "under its old name": s.env(s.package(s.h200(), "flashattn-hopper", "3.0.0b1"), FLASH_ATTENTION_DETERMINISTIC="1"),
    "alone": s.env(s.package(s.laptop(), "flash-attn-3", "3.0.0b1"), FLASH_ATTENTION_DETERMINISTIC="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "nobody asks for determinism": THREE,
    "FA2": s.env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the way out."""
    return "attn_implementation" in finding
