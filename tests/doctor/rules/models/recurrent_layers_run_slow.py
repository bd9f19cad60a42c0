"""Cases for ATN353."""

from __future__ import annotations

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

LAYERS = ("linear_attention", "linear_attention", "linear_attention", "full_attention")


def with_next(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a Qwen3-Next."""
    return s.with_model(snapshot, model_type="qwen3_next", layer_types=LAYERS)


FIRES = {
    "qwen3_next with neither": with_next(s.h200()),
    "with one of the two": with_next(s.with_package(s.h200(), "causal-conv1d", "1.7.0")),
    "an older transformers": with_next(s.with_package(s.h200(), "transformers", "4.57.3")),
    "mamba": s.with_model(s.h200(), model_type="mamba2", layer_types=("mamba",) * 4),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "both are installed": with_next(
        s.with_package(s.with_package(s.h200(), "causal-conv1d", "1.7.0"), "flash-linear-attention", "0.5.0")
    ),
    "no GPU to run them on": with_next(s.laptop()),
}


def says(text: str) -> bool:
    """Return whether the finding names what is missing and installs it."""
    return "not installed" in text and "pip install" in text and "not tried" in text
