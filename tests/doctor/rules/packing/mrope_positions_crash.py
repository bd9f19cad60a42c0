"""Cases for ATN408."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "qwen2_5_vl under 4.53.3": s.with_model(
        s.with_package(s.h200(), "transformers", "4.53.3"), model_type="qwen2_5_vl", mrope=True
    ),
    "glm4v under 4.57.6": s.with_model(
        s.with_package(s.h200(), "transformers", "4.57.6"), model_type="glm4v", mrope=True
    ),
    "qwen3_5 under 5.3.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.3.0"), model_type="qwen3_5", mrope=True
    ),
}
SILENT = {
    "qwen3_5 under 5.4.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.4.0"), model_type="qwen3_5", mrope=True
    ),
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "qwen2_5_vl under 4.54.0": s.with_model(
        s.with_package(s.h200(), "transformers", "4.54.0"), model_type="qwen2_5_vl", mrope=True
    ),
    "glm4v under 5.0.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.0.0"), model_type="glm4v", mrope=True
    ),
    "a model of which nothing is known": s.with_model(
        s.with_package(s.h200(), "transformers", "4.53.3"), model_type="new_vl", mrope=True
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "sdpa" in text and "positions" in text
