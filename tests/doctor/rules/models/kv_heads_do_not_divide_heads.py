"""Cases for ATN326."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "28 and 5": s.with_model(s.h200(), num_kv_heads=s.Known(5)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "28 and 7": s.with_model(s.h200(), num_kv_heads=s.Known(7)),
    "unknown": s.with_model(s.h200(), num_kv_heads=s.Unreadable()),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "5" in text and "28" in text
