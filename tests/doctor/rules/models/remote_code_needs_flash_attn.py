"""Cases for ATN304."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "no flash-attn, no class in the library": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"),
        remote_code=True,
        remote_imports=("flash_attn", "torch"),
        accepts=s.Unreadable("the model brings its own code"),
    ),
    "no flash-attn, a class in the library": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), remote_code=True, remote_imports=("flash_attn",)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn is installed": s.with_model(s.h200(), remote_code=True, remote_imports=("flash_attn",)),
    "no such import": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), remote_code=True, remote_imports=("torch",)
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "flash_attn" in text and "install" in text
