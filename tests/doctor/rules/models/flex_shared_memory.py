"""Cases for ATN356."""

from __future__ import annotations

from tests import snapshots as s

RTX_4090 = s.with_gpus(s.h200(), (8, 9))
FLEX = {"attn_implementation": "flex_attention"}
FIRES = {
    "a launch on an RTX 4090": s.with_job(s.with_model(RTX_4090, head_dims=(256,)), FLEX),
    "config.json requests it": s.with_model(
        s.with_gpus(s.h200(), (12, 0)), head_dims=(256,), attn_implementation=s.Known("flex_attention")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "an H200": s.with_job(s.with_model(s.h200(), head_dims=(256,)), FLEX),
    "head size 128": s.with_job(s.with_model(RTX_4090), FLEX),
    "another attention": s.with_job(s.with_model(RTX_4090, head_dims=(256,))),
}


def says(text: str) -> bool:
    """Return whether the finding names the GPU and another attention."""
    return "flex_attention" in text and "use " in text
