"""Cases for ATN317."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED_IMPLEMENTATIONS, answers_refusing

FIRES = {
    "falcon-rw": s.with_model(s.h200(), model_type="falcon", alibi=True),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "falcon with rotary positions": s.with_model(s.h200(), model_type="falcon"),
    "bloom refuses on its own": s.with_model(
        s.h200(), model_type="bloom", alibi=True, accepts=answers_refusing(*FUSED_IMPLEMENTATIONS)
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "alibi" in text and "sdpa" in text
