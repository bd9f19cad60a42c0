"""Cases for ATN510."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "accelerate 1.10.0": s.with_model(
        s.with_package(s.h200(), "accelerate", "1.10.0"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
    "accelerate 1.14.0": s.with_model(
        s.with_package(s.h200(), "accelerate", "1.14.0"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "accelerate 1.15.0": s.with_model(
        s.with_package(s.h200(), "accelerate", "1.15.0"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
    "accelerate 1.9.0": s.with_model(
        s.with_package(s.h200(), "accelerate", "1.9.0"),
        model_type="mistral",
        layer_types=("sliding_attention",) * 32,
        sliding_window=s.Known(4096),
    ),
    "no window": s.with_model(s.with_package(s.h200(), "accelerate", "1.14.0")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "accelerate" in text and "1.15.0" in text
