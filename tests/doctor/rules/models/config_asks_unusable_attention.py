"""Cases for ATN320."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing, answers_with_text

FIRES = {
    "flash-attn is missing": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"),
        attn_implementation=s.Known("flash_attention_2"),
        accepts=answers_with_text("flash_attention_2", "not installed: FlashAttention2 has been toggled on"),
    ),
    "the class refuses": s.with_model(s.h200(), attn_implementation=s.Known("sdpa"), accepts=answers_refusing("sdpa")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "it is accepted": s.with_model(s.h200(), attn_implementation=s.Known("flash_attention_2")),
    "nobody was queried": s.with_model(
        s.h200(), attn_implementation=s.Known("flash_attention_2"), accepts=s.Unreadable()
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "config.json requests" in text
