"""Cases for ATN325."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "a float32 checkpoint": s.with_model(s.h200(), dtype=s.Known("float32")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "bfloat16": s.with_model(s.h200(), dtype=s.Known("bfloat16")),
    "the class refuses flash": s.with_model(
        s.h200(), dtype=s.Known("float32"), accepts=answers_refusing("flash_attention_2")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "float32" in text and "bfloat16" in text
