"""Cases for ATN509."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "28 and 4 heads under verl": s.with_model(
        s.with_package(s.h200(), "verl", "0.9.1"), num_heads=s.Known(28), num_kv_heads=s.Known(4)
    ),
    "14 and 2 heads under DeepSpeed": s.with_model(
        s.with_package(s.h200(), "deepspeed", "0.19.8"), num_heads=s.Known(14), num_kv_heads=s.Known(2)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "32 and 8 heads": s.with_model(
        s.with_package(s.h200(), "verl", "0.9.1"), num_heads=s.Known(32), num_kv_heads=s.Known(8)
    ),
    "no such framework": s.with_model(s.h200()),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "do not work" in text
