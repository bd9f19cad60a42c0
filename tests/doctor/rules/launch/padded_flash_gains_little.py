"""Cases for ATN820."""

from __future__ import annotations

from tests import snapshots as s

PADDED = {"packing": "padding", "batch": 8}
FIRES = {
    "eight padded rows": s.with_job(s.h200(), PADDED),
    "two": s.with_job(s.h200(), {**PADDED, "batch": 2}),
}
SILENT = {
    "packed": s.with_job(s.h200(), {"batch": 8}),
    "one row has no padding": s.with_job(s.h200(), {**PADDED, "batch": 1}),
    "sdpa": s.with_job(s.h200(), {**PADDED, "attn_implementation": "sdpa"}),
    "preference pairs": s.with_job(s.h200(), PADDED, trainer="dpo"),
}


def says(text: str) -> bool:
    """Return whether the finding names the padding and packs."""
    return "padded rows" in text and "'packing': 'on'" in text
