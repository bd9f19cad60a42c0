"""Cases for ATN502."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "gpt_oss": s.with_model(s.h200(), model_type="gpt_oss", sinks=True),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(s.without_packages(s.h200(), "ring-flash-attn"), model_type="gpt_oss", sinks=True),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "sinks" in text
