"""Cases for ATN327."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "a text for a number": s.with_model(
        s.h200(), num_heads=s.Unreadable("num_attention_heads is 'x', not a whole number of at least 1")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a field that is left out": s.with_model(
        s.h200(), max_position_embeddings=s.Absent("config.json does not give it")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "num_attention_heads" in text
