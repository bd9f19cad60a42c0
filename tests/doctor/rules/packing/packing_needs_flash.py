"""Cases for ATN401."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "transformers 4.53.0 without flash-attn": s.without_packages(
        s.with_package(s.h200(), "transformers", "4.53.0"), "flash-attn", "ring-flash-attn"
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "transformers 4.53.1": s.without_packages(
        s.with_package(s.h200(), "transformers", "4.53.1"), "flash-attn", "ring-flash-attn"
    ),
    "flash-attn is there": s.with_package(s.h200(), "transformers", "4.53.0"),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "4.53.1" in text
