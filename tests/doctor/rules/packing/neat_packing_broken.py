"""Cases for ATN410."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "0.9.3 beside 4.53.0": s.with_package(s.with_package(s.h200(), "transformers", "4.53.0"), "llamafactory", "0.9.3"),
    "0.9.4 beside 4.57.1": s.with_package(s.with_package(s.h200(), "transformers", "4.57.1"), "llamafactory", "0.9.4"),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "0.9.3 beside 4.52.4": s.with_package(s.with_package(s.h200(), "transformers", "4.52.4"), "llamafactory", "0.9.3"),
    "0.9.5 alongside 5.5.0": s.with_package(s.with_package(s.h200(), "transformers", "5.5.0"), "llamafactory", "0.9.5"),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "neat" in text and "0.9.5" in text
