"""Cases for ATN820."""

from __future__ import annotations

from attncheck.core.launch import SourceLocation
from attncheck.core.model import Tower
from tests import snapshots as s

PADDED = {"packing": "padding", "batch": 8}
WRITTEN = {"batch": SourceLocation("train.sh", 3)}
FIRES = {
    "eight padded rows": s.with_job(s.h200(), PADDED, locations=WRITTEN),
    "two": s.with_job(s.h200(), {**PADDED, "batch": 2}, locations=WRITTEN),
}
SILENT = {
    "packed": s.with_job(s.h200(), {"batch": 8}, locations=WRITTEN),
    "one row has no padding": s.with_job(s.h200(), {**PADDED, "batch": 1}, locations=WRITTEN),
    "sdpa": s.with_job(s.h200(), {**PADDED, "attn_implementation": "sdpa"}, locations=WRITTEN),
    "preference pairs": s.with_job(s.h200(), PADDED, trainer="dpo", locations=WRITTEN),
    "pictures": s.with_model(s.with_job(s.h200(), PADDED, locations=WRITTEN), towers=(Tower("vision_config", 16, 72),)),
    "a default that nobody chose": s.with_job(s.h200(), PADDED),
}


def says(text: str) -> bool:
    """Return whether the finding names the padding and packs."""
    return "padded rows" in text and "'packing': 'on'" in text
