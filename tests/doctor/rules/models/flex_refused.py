"""Cases for ATN309."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED_IMPLEMENTATIONS, answers_refusing

FIRES = {
    "flash is refused too": s.with_model(s.h200(), accepts=answers_refusing("flash_attention_2", "flex_attention")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "sdpa and flash are accepted": s.with_model(s.h200(), accepts=answers_refusing("flex_attention")),
    "everything refused": s.with_model(s.h200(), accepts=answers_refusing(*FUSED_IMPLEMENTATIONS)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "flex_attention" in text and "sdpa" in text
