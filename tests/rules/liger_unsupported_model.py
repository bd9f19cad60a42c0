"""Cases for ATN322."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "a type that liger does not list": s.model(
        s.interfaces(s.package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Known(("llama", "qwen2"))),
        model_type="falcon",
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.model(s.h200()),
    "a type that liger lists": s.model(
        s.interfaces(s.package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Known(("llama", "qwen2"))),
        model_type="qwen2",
    ),
    "liger is not installed": s.model(s.without(s.h200(), "liger-kernel"), model_type="falcon"),
    "liger was not imported": s.model(
        s.interfaces(s.package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Unreadable("hung")),
        model_type="falcon",
    ),
}


def says(text: str) -> bool:
    """Say whether the finding names the cause and the way out."""
    return "falcon" in text and "use_liger_kernel" in text
