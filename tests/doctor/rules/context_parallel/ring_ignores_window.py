"""Cases for ATN501."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "Mistral 7B v0.1": s.with_model(
        s.h200(), model_type="mistral", layer_types=("sliding_attention",) * 32, sliding_window=s.Known(4096)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(
        s.without_packages(s.h200(), "ring-flash-attn"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
    "a softcap rules the ring out": s.with_model(
        s.h200(),
        softcap=s.Known(50.0),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
    "no text is longer than the window": s.with_model(
        s.h200(),
        max_position_embeddings=s.Known(4096),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "4096" in text
