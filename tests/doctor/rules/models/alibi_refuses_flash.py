"""Cases for ATN317."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED, refusing

FIRES = {
    "falcon-rw": s.model(s.h200(), model_type="falcon", alibi=True),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.model(s.h200()),
    "falcon with rotary positions": s.model(s.h200(), model_type="falcon"),
    "bloom refuses by itself": s.model(s.h200(), model_type="bloom", alibi=True, accepts=refusing(*FUSED)),
}


def says(text: str) -> bool:
    """Say whether the finding names the cause and the way out."""
    return "alibi" in text and "sdpa" in text
