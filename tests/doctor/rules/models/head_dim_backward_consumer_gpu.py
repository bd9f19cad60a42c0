"""Cases for ATN315."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "flash-attn 2.5.4 on an RTX 4090": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn", "2.5.4"), (8, 9)),
        model_type="gemma",
        head_dims=(256,),
        head_dim=s.Known(256),
    ),
    "dropout on an RTX 3090": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn", "2.8.3"), (8, 6)),
        attention_dropout=s.Known(0.1),
        model_type="gemma",
        head_dims=(256,),
        head_dim=s.Known(256),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn 2.5.5 on an RTX 4090": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn", "2.5.5"), (8, 9)),
        model_type="gemma",
        head_dims=(256,),
        head_dim=s.Known(256),
    ),
    "flash-attn 2.5.4 on an A100": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn", "2.5.4"), (8, 0)),
        model_type="gemma",
        head_dims=(256,),
        head_dim=s.Known(256),
    ),
    "head size 192": s.with_model(
        s.with_gpus(s.with_package(s.h200(), "flash-attn", "2.5.4"), (8, 9)), head_dims=(192,)
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "backward" in text and "sm_8" in text
