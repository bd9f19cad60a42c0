"""Cases for ATN320."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import refusing, saying

FIRES = {
    "flash-attn is missing": s.model(
        s.without(s.h200(), "flash-attn", "ring-flash-attn"),
        attn_implementation=s.Known("flash_attention_2"),
        accepts=saying("flash_attention_2", "not installed: FlashAttention2 has been toggled on"),
    ),
    "the class refuses": s.model(s.h200(), attn_implementation=s.Known("sdpa"), accepts=refusing("sdpa")),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.model(s.h200()),
    "it is accepted": s.model(s.h200(), attn_implementation=s.Known("flash_attention_2")),
    "nobody was asked": s.model(s.h200(), attn_implementation=s.Known("flash_attention_2"), accepts=s.Unreadable()),
}


def says(text: str) -> bool:
    """Say whether the finding names the cause and the way out."""
    return "config.json asks for" in text
