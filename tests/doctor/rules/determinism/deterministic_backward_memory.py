"""Cases for ATN176."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

FLASH = {"attn_implementation": "flash_attention_2", "deterministic": True}


def with_length(tokens: int, **plan: object) -> Snapshot:
    """Return one H200 with a deterministic launch of 28 heads of 128 at this length."""
    return s.with_job(s.with_model(s.h200()), {**FLASH, "max_length": tokens, **plan})


FIRES = {
    "256k tokens": with_length(262_144),
    "by the variable": s.with_env(with_length(262_144, deterministic=False), FLASH_ATTENTION_DETERMINISTIC="1"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "short rows": with_length(8192),
    "not deterministic": with_length(262_144, deterministic=False),
    "sdpa": with_length(262_144, attn_implementation="sdpa"),
    "rows enough for one split": with_length(32_768, batch=8),
}


def says(finding: str) -> bool:
    """Return whether the finding's text gives both amounts."""
    return "17.5 GiB" in finding and "instead of 3.5" in finding
