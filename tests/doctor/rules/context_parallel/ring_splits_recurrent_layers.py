"""Cases for ATN511."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "qwen3_next": s.with_model(s.h200(), model_type="qwen3_next", layer_types=("linear_attention", "full_attention")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(
        s.without_packages(s.h200(), "ring-flash-attn"),
        model_type="qwen3_next",
        layer_types=("linear_attention", "full_attention"),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "recurrent" in text
