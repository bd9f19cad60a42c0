"""Cases for ATN429."""

from __future__ import annotations

from typing import Any

from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

FORWARDS = (SourceLocation("model.py", 3),)
WRITTEN = {"global_batch": SourceLocation("run.sh", 5)}


def accumulating(transformers: str, accumulation: int = 8, **fields: Any) -> Snapshot:
    """Return a launch of TRL's SFT under this transformers."""
    laptop = s.with_package(s.laptop(), "transformers", transformers)
    return s.with_job(laptop, {"accumulation": accumulation}, **{"framework": "trl", "locations": WRITTEN, **fields})


FIRES = {
    "TRL under 4.45.2": accumulating("4.45.2"),
    "LLaMA-Factory under 4.44.0": accumulating("4.44.0", framework="llamafactory"),
    "a newer Trainer with a model whose forward takes no **kwargs": accumulating(
        "4.57.3", framework="transformers", trainer="trainer", plain_forwards=FORWARDS, has_plain_forward=True
    ),
}
SILENT = {
    "4.46.3 counts tokens": accumulating("4.46.3"),
    "nothing is accumulated": accumulating("4.45.2", 1),
    "a newer Trainer that may train another model": accumulating(
        "4.57.3", framework="transformers", trainer="trainer", plain_forwards=FORWARDS
    ),
    "a loss per row": accumulating("4.45.2", trainer="dpo"),
    "a Trainer whose loss the program replaces": accumulating(
        "4.45.2", framework="transformers", trainer="trainer with its own loss"
    ),
    "a framework with its own loop": accumulating("4.45.2", framework="openrlhf"),
    "rows of one length": s.with_job(
        s.with_package(s.laptop(), "transformers", "4.45.2"),
        {"accumulation": 8, "packing": "mask_2d"},
        framework="trl",
        locations=WRITTEN,
    ),
    "blocks of one length": accumulating("4.45.2", framework="transformers", trainer="trainer", has_equal_rows=True),
    "not written: the default is not judged": accumulating("4.45.2", locations={}),
}


def says(text: str) -> bool:
    """Return whether the finding says over what is averaged, and which release counts."""
    return "micro-batches" in text and ("transformers>=4.46.0" in text or "model.py:3" in text)
