"""Cases for ATN323."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "192 on a B200": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn-4", "4.0.0b36"), (10, 0)),
        head_dims=(192,),
        v_head_dim=s.Known(192),
    ),
    "512 on an H200": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn-4", "4.0.0b36"), (9, 0)), head_dims=(256, 512)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "192 and 128 on a B200": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn-4", "4.0.0b36"), (10, 0)),
        head_dims=(192,),
        v_head_dim=s.Known(128),
    ),
    "256 on an H200": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn-4", "4.0.0b36"), (9, 0)),
        head_dims=(256,),
        v_head_dim=s.Known(256),
    ),
    "no flash-attn-4": s.with_model(s.with_gpus(s.h200(), (10, 0)), head_dims=(192,)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "flash-attn-4" in text and "sm_" in text
