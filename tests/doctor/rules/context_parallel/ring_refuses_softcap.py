"""Cases for ATN503."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "gemma2": s.with_model(s.h200(), model_type="gemma2", softcap=s.Known(50.0)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(s.without_packages(s.h200(), "ring-flash-attn"), softcap=s.Known(50.0)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "softcap" in text
