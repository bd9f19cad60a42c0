"""Cases for ATN319."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "a float16 checkpoint": s.with_model(s.h200(), model_type="gemma3", dtype=s.Known("float16")),
    "a T4": s.with_model(s.with_gpus(s.h200(), (7, 5)), model_type="gemma2"),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "bfloat16 on an A100": s.with_model(s.with_gpus(s.h200(), (8, 0)), model_type="gemma3"),
    "another model in float16": s.with_model(s.h200(), dtype=s.Known("float16")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "float16" in text and "dtype=" in text
