"""Cases for ATN311."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "flash-attn 2.5.9.post1": s.with_model(
        s.with_package(s.h200(), "flash-attn", "2.5.9.post1"), model_type="gemma2", softcap=s.Known(50.0)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn 2.6.0": s.with_model(
        s.with_package(s.h200(), "flash-attn", "2.6.0"), model_type="gemma2", softcap=s.Known(50.0)
    ),
    "the launch requests eager": s.with_job(
        s.with_model(s.with_package(s.h200(), "flash-attn", "2.5.9.post1"), softcap=s.Known(50.0)),
        {"attn_implementation": "eager"},
    ),
    "no softcap": s.with_model(s.with_package(s.h200(), "flash-attn", "2.5.9.post1")),
    "no flash-attn": s.with_model(s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), softcap=s.Known(50.0)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "softcap" in text and ">=2.6.3" in text
