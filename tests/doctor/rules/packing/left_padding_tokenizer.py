"""Cases for ATN407."""

from __future__ import annotations

from attncheck.core.model import Tokenizer
from tests import snapshots as s

FIRES = {
    "left": s.with_model(s.h200(), tokenizer=s.Known(Tokenizer(s.Known("left"), s.Known("<pad>"), s.Known("</s>")))),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "right": s.with_model(s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>")))),
    "left out": s.with_model(s.h200(), tokenizer=s.Known(Tokenizer(s.Absent(), s.Known("<pad>"), s.Known("</s>")))),
    "OpenRLHF sets it itself": s.with_model(
        s.with_package(s.h200(), "openrlhf", "0.11.2"),
        tokenizer=s.Known(Tokenizer(s.Known("left"), s.Known("<pad>"), s.Known("</s>"))),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "right" in text
