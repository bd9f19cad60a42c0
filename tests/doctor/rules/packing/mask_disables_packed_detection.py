"""Cases for ATN402."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "a model and no framework": s.with_model(s.h200()),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "TRL sees to it": s.with_model(s.with_package(s.h200(), "trl", "1.0.0")),
    "an encoder": s.with_model(s.h200(), causal=False),
    "flash is refused": s.with_model(s.h200(), accepts=answers_refusing("flash_attention_2")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "attention_mask" in text
