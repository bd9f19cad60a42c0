"""Cases for ATN133."""

from __future__ import annotations

from tests import snapshots as s

VERL = s.with_package(s.h200(), "verl", "0.9.1")
PADDING = {"provider": "flash_attn", "source": "flash_attn.bert_padding", "name": "unpad_input_v2"}

FIRES = {
    "of flash-attn": s.with_links(VERL, s.make_link(fallback_line=30, **PADDING)),
    "of transformers' masks": s.with_links(
        VERL, s.make_link(fallback_line=30, source="transformers.masking_utils", name="gone")
    ),
}
SILENT = {
    "a launch of another framework": s.with_job(
        s.with_links(VERL, s.make_link(fallback_line=30, **PADDING)), framework="trl", trainer="sft"
    ),
    "the recorded machine, which was not linked": s.h200(),
    "not caught": s.with_links(VERL, s.make_link(**PADDING)),
    "nothing of attention": s.with_links(
        VERL, s.make_link(fallback_line=30, source="transformers.trainer_utils", name="ShardedDDPOption")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the line if the package goes on."""
    return "line 30" in text
