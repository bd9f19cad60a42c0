"""Cases for ATN513."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "float16": s.model(s.h200(), dtype=s.Known("float16")),
    "torch.float16": s.model(s.h200(), dtype=s.Known("torch.float16")),
    "float32": s.model(s.h200(), dtype=s.Known("float32")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.model(s.h200()),
    "no ring": s.model(s.without(s.h200(), "ring-flash-attn"), dtype=s.Known("float16")),
    "unknown": s.model(s.h200(), dtype=s.Absent()),
    "an encoder: no ring anyway": s.model(s.h200(), dtype=s.Known("float16"), causal=False),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "bfloat16" in text
