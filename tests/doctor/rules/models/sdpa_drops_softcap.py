"""Cases for ATN310."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "gemma2 under transformers 5.20.2": s.with_model(
        s.with_package(s.h200(), "transformers", "5.20.2"), model_type="gemma2", softcap=s.Known(50.0)
    ),
    "not asked, transformers 4.57.3": s.with_model(
        s.with_package(s.h200(), "transformers", "4.57.3"),
        model_type="gemma2",
        softcap=s.Known(50.0),
        accepts=s.Unreadable(),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "transformers 5.21.0 refuses": s.with_model(
        s.with_package(s.h200(), "transformers", "5.21.0"),
        model_type="gemma2",
        softcap=s.Known(50.0),
        accepts=answers_refusing("sdpa"),
    ),
    "5.21.0, not asked": s.with_model(
        s.with_package(s.h200(), "transformers", "5.21.0"),
        model_type="gemma2",
        softcap=s.Known(50.0),
        accepts=s.Unreadable(),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "softcap" in text and "5.21.0" in text
