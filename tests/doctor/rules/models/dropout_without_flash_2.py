"""Cases for ATN324."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "flash-attn-3 alone": s.with_model(
        s.with_package(s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), "flash-attn-3", "3.0.0"),
        attention_dropout=s.Known(0.1),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn 2 is there": s.with_model(
        s.with_package(s.h200(), "flash-attn-3", "3.0.0"), attention_dropout=s.Known(0.1)
    ),
    "no dropout": s.with_model(
        s.with_package(s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), "flash-attn-3", "3.0.0")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "dropout" in text
