"""Cases for ATN508."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "28 and 4 heads": s.with_model(s.h200(), num_heads=s.Known(28), num_kv_heads=s.Known(4)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "32 and 32 heads": s.with_model(s.h200(), num_heads=s.Known(32), num_kv_heads=s.Known(32)),
    "no ring": s.with_model(s.without_packages(s.h200(), "ring-flash-attn")),
    "one key/value head": s.with_model(s.h200(), num_kv_heads=s.Known(1)),
    "sinks rule the ring out": s.with_model(s.h200(), sinks=True),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "1, 2, 4" in text
