"""Cases for ATN318."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED_IMPLEMENTATIONS, answers_refusing

FIRES = {
    "bloom at 65536 tokens": s.with_model(
        s.with_gpus(s.h200(), (9, 0)),
        model_type="bloom",
        num_heads=s.Known(32),
        max_position_embeddings=s.Known(65536),
        accepts=answers_refusing(*FUSED_IMPLEMENTATIONS),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "short sequences fit": s.with_model(
        s.with_gpus(s.h200(), (9, 0)),
        model_type="bloom",
        num_heads=s.Known(32),
        max_position_embeddings=s.Known(2048),
        accepts=answers_refusing(*FUSED_IMPLEMENTATIONS),
    ),
    "no GPU": s.with_model(
        s.with_gpus(s.h200()),
        model_type="bloom",
        num_heads=s.Known(32),
        max_position_embeddings=s.Known(65536),
        accepts=answers_refusing(*FUSED_IMPLEMENTATIONS),
    ),
    "sdpa is accepted": s.with_model(s.h200(), accepts=answers_refusing("flash_attention_2", "flex_attention")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "supports only eager" in text and "max_length" in text
