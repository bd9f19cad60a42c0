"""Cases for ATN301."""

from __future__ import annotations

from dataclasses import replace

from tests import snapshots as s

FIRES = {
    "a file of 100 MB": replace(s.h200(), model=s.Unreadable("config.json is 100 MB; a model config is a few kB")),
    "a name that is not cached": replace(
        s.laptop(), model=s.Unreadable("there is no folder x/y here, and no x/y in the Hugging Face cache")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "cannot be read" in text
