"""Cases for ATN409."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "qwen3_next under 5.8.0 with the kernels": s.with_model(
        s.with_package(
            s.with_package(s.with_package(s.h200(), "transformers", "5.8.0"), "flash-linear-attention", "0.4.1"),
            "causal-conv1d",
            "1.5.2",
        ),
        model_type="qwen3_next",
        layer_types=("linear_attention", "full_attention"),
    ),
    "qwen3_5 under 5.8.1 with the kernels": s.with_model(
        s.with_package(
            s.with_package(s.with_package(s.h200(), "transformers", "5.8.1"), "flash-linear-attention", "0.4.1"),
            "causal-conv1d",
            "1.5.2",
        ),
        model_type="qwen3_5_text",
        layer_types=("linear_attention", "full_attention"),
    ),
    "qwen3_next under 5.9.0 without them": s.with_model(
        s.with_package(s.h200(), "transformers", "5.9.0"),
        model_type="qwen3_next",
        layer_types=("linear_attention", "full_attention"),
    ),
    "jamba": s.with_model(
        s.with_package(s.h200(), "transformers", "5.17.0"), model_type="jamba", layer_types=("mamba", "full_attention")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "qwen3_next under 5.9.0 with the kernels": s.with_model(
        s.with_package(
            s.with_package(s.with_package(s.h200(), "transformers", "5.9.0"), "flash-linear-attention", "0.4.1"),
            "causal-conv1d",
            "1.5.2",
        ),
        model_type="qwen3_next",
        layer_types=("linear_attention", "full_attention"),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "packing" in text
