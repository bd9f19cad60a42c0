"""Cases for ATN406."""

from __future__ import annotations

from attncheck.core.model import Tokenizer
from tests import snapshots as s

FIRES = {
    "the same token": s.with_model(
        s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("</s>"), s.Known("</s>")))
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "two tokens": s.with_model(
        s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>")))
    ),
    "neither": s.with_model(s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Absent(), s.Absent()))),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "</s>" in text and "attention_mask" in text
