"""Cases for ATN178."""

from __future__ import annotations

from attncheck.doctor.target import apply_target, parse_target
from tests import snapshots as s

MISSING = ("flash_attn_2_cuda (flash_attn/flash_attn_interface.py:15)",)
BUILT_WITHOUT = s.with_package(s.h200(), "flash-attn", "2.8.3", missing_modules=MISSING)
LOGIN_NODE = s.with_package(s.laptop(), "flash-attn", "2.8.3", missing_modules=MISSING)

FIRES = {
    "the extension is nowhere": BUILT_WITHOUT,
    "on a login node without a GPU": LOGIN_NODE,
    "the environment is judged for a target": apply_target(LOGIN_NODE, parse_target("h100x8")),
    "causal-conv1d": s.with_package(
        s.h200(), "causal-conv1d", "1.5.0", missing_modules=("causal_conv1d_cuda (causal_conv1d/interface.py:9)",)
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the target names another release": apply_target(BUILT_WITHOUT, parse_target("h100x8,flash-attn=2.8.2")),
}


def says(text: str) -> bool:
    """Return whether the finding names the module, and the switch that left it out."""
    return "cuda" in text and "SKIP_CUDA_BUILD" in text
