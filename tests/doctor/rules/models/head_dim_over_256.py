"""Cases for ATN314."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "gemma4": s.with_model(s.h200(), model_type="gemma4", head_dims=(256, 512), head_dim=s.Known(512)),
    "257": s.with_model(s.h200(), head_dims=(257,), head_dim=s.Known(257)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "256": s.with_model(s.h200(), head_dims=(256,), head_dim=s.Known(256)),
    "the class refuses flash": s.with_model(s.h200(), head_dims=(512,), accepts=answers_refusing("flash_attention_2")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "256" in text and "sdpa" in text
