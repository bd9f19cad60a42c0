"""Cases for ATN403."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "no flash attention, no framework": s.with_model(
        s.without_packages(
            s.with_package(s.h200(), "transformers", "4.53.1"), "flash-attn", "ring-flash-attn", "accelerate"
        )
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "the cache is off": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), use_cache=s.Known(False)
    ),
    "flash-attn is there": s.with_model(s.h200()),
    "a transformers without the detection": s.with_model(
        s.without_packages(s.with_package(s.h200(), "transformers", "4.53.0"), "flash-attn", "ring-flash-attn")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "use_cache" in text
