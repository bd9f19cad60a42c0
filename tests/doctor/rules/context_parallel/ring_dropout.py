"""Cases for ATN505."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "dropout 0.1": s.with_model(s.h200(), attention_dropout=s.Known(0.1)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(s.without_packages(s.h200(), "ring-flash-attn"), attention_dropout=s.Known(0.1)),
    "unknown": s.with_model(s.h200(), attention_dropout=s.Absent()),
    "an encoder: no ring anyway": s.with_model(s.h200(), attention_dropout=s.Known(0.1), causal=False),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "attention_dropout=0.0" in text
