"""Cases for ATN321."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "it is on": s.with_model(s.h200(), output_attentions=True),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "output_attentions" in text
