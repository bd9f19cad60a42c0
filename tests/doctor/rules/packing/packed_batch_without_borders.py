"""Cases for ATN460."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import BatchMeasurement, Experiments
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

BARE, FULL = ("attention_mask", "input_ids", "labels"), ("input_ids", "labels", "position_ids")


def with_batches(*batches: tuple[str, str, bool], trainer: str = "trl") -> Snapshot:
    measured = tuple(
        BatchMeasurement(trainer, layout, attention, FULL if separates else BARE, separates)
        for layout, attention, separates in batches
    )
    return replace(s.with_package(s.h200(), trainer, "0.21.0"), experiments=s.Known(Experiments(batches=measured)))


MIXED = with_batches(("packing", "flash_attention_2", True), ("packing", "flash_attention_3", False))
FIRES = {
    "packed under flash_attention_3": MIXED,
    "padding-free under sdpa": with_batches(("padding_free", "sdpa", False)),
    "LLaMA-Factory, packed under sdpa": with_batches(("packing", "sdpa", False), trainer="llamafactory"),
}
SILENT = {
    "nothing was measured": s.h200(),
    "every batch has its borders": with_batches(("packing", "sdpa", True), ("padding_free", "sdpa", True)),
    "padded rows": with_batches(("padded", "sdpa", False)),
    "a launch of another framework": s.with_job(MIXED, {"attn_implementation": "flash_attention_3"}),
}


def says(text: str) -> bool:
    """Return whether the finding names the attention and one that works."""
    return "flash_attention_3" in text or "sdpa" in text
