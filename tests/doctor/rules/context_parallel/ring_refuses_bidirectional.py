"""Cases for ATN506."""

from __future__ import annotations

from attncheck.core.model import Tower
from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "bert": s.with_model(s.h200(), model_type="bert", causal=False),
    "a vision tower": s.with_model(s.h200(), model_type="qwen2_5_vl", towers=(Tower("vision_config", 16, 80),)),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "no ring": s.with_model(
        s.without_packages(s.h200(), "ring-flash-attn"), causal=False, towers=(Tower("vision_config", 16, 80),)
    ),
    "an encoder that refuses flash": s.with_model(
        s.h200(), causal=False, accepts=answers_refusing("flash_attention_2")
    ),
    "flash is refused anyway": s.with_model(
        s.h200(), towers=(Tower("vision_config", 16, 80),), accepts=answers_refusing("flash_attention_2")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "causal only" in text
