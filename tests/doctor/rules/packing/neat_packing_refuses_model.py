"""Cases for ATN411."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "gpt_oss": s.with_model(
        s.with_package(s.with_package(s.h200(), "transformers", "5.5.0"), "llamafactory", "0.9.5"), model_type="gpt_oss"
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "qwen2": s.with_model(s.with_package(s.with_package(s.h200(), "transformers", "5.5.0"), "llamafactory", "0.9.5")),
    "no LLaMA-Factory": s.with_model(s.h200(), model_type="gpt_oss"),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "neat_packing: false" in text
