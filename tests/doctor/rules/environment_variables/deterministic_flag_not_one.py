"""Cases for ATN709."""

from tests import snapshots as s

FIRES = {
    "a word": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="True"),
    "another number": s.with_env(s.laptop(), FLASH_ATTENTION_DETERMINISTIC="2"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "on": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
    "off on purpose": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="0"),
    "off in a word": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="false"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "export FLASH_ATTENTION_DETERMINISTIC=1" in finding
