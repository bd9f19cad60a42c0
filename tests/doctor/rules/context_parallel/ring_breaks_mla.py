"""Cases for ATN507."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "deepseek_v3 under 5.15.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.15.0"),
        model_type="deepseek_v3",
        head_dim=s.Known(192),
        v_head_dim=s.Known(128),
        head_dims=(192,),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "deepseek_v3 under 5.14.1": s.with_model(
        s.with_package(s.h200(), "transformers", "5.14.1"),
        model_type="deepseek_v3",
        head_dim=s.Known(192),
        v_head_dim=s.Known(128),
        head_dims=(192,),
    ),
    "no ring": s.with_model(
        s.without_packages(s.with_package(s.h200(), "transformers", "5.15.0"), "ring-flash-attn"),
        model_type="deepseek_v3",
        head_dim=s.Known(192),
        v_head_dim=s.Known(128),
        head_dims=(192,),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "192" in text and "128" in text
