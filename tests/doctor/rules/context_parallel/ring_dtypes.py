"""Cases for ATN513."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "float16": s.with_model(s.h200(), dtype=s.Known("float16")),
    "torch.float16": s.with_model(s.h200(), dtype=s.Known("torch.float16")),
    "float32": s.with_model(s.h200(), dtype=s.Known("float32")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(s.without_packages(s.h200(), "ring-flash-attn"), dtype=s.Known("float16")),
    "unknown": s.with_model(s.h200(), dtype=s.Absent()),
    "an encoder: no ring anyway": s.with_model(s.h200(), dtype=s.Known("float16"), causal=False),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "bfloat16" in text
