"""Cases for ATN570."""

from tests import snapshots as s

RING = {"ring_size": 2}
FIRES = {
    "flash_attention_3": s.with_job(s.h200x2(), {**RING, "attn_implementation": "flash_attention_3"}),
    "the default": s.with_job(s.h200x2(), {**RING, "attn_implementation": ""}),
    "Ulysses under sdpa": s.with_job(s.h200x2(), {**RING, "attn_implementation": "sdpa"}, scheme="ulysses"),
}
SILENT = {
    "no launch": s.h200x2(),
    "no ring": s.with_job(s.h200(), {"attn_implementation": "flash_attention_3"}),
    "if it is hooked in": s.with_job(s.h200x2(), RING),
    "hooked in everywhere": s.with_job(s.h200x2(), {**RING, "attn_implementation": "sdpa"}, hooked=()),
}


def says(findings: str) -> bool:
    """Return whether the implementation that works is named."""
    return "'attn_implementation': 'flash_attention_2'" in findings and "only to its own part" in findings
