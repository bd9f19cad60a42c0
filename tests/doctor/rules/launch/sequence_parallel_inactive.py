"""Cases for ATN570."""

from tests import snapshots as s

RING = {"ring_size": 2}
FIRES = {
    "flash_attention_3": s.job(s.h200x2(), {**RING, "attn_implementation": "flash_attention_3"}),
    "the default": s.job(s.h200x2(), {**RING, "attn_implementation": ""}),
    "Ulysses under sdpa": s.job(s.h200x2(), {**RING, "attn_implementation": "sdpa"}, scheme="ulysses"),
}
SILENT = {
    "no launch": s.h200x2(),
    "no ring": s.job(s.h200(), {"attn_implementation": "flash_attention_3"}),
    "where it is hooked in": s.job(s.h200x2(), RING),
    "hooked in everywhere": s.job(s.h200x2(), {**RING, "attn_implementation": "sdpa"}, hooked=()),
}


def says(findings: str) -> bool:
    """Say whether the implementation that works is told."""
    return "'attn_implementation': 'flash_attention_2'" in findings and "its own part only" in findings
