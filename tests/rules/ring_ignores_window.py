"""Cases for ATN501."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "Mistral 7B v0.1": s.model(
        s.h200(), model_type="mistral", layer_types=("sliding_attention",) * 32, sliding_window=s.Known(4096)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.model(s.h200()),
    "no ring": s.model(
        s.without(s.h200(), "ring-flash-attn"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
}


def says(text: str) -> bool:
    """Say whether the finding names the cause and the way out."""
    return "4096" in text
