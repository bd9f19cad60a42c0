"""Cases for ATN405."""

from __future__ import annotations

from attncheck.core.model import Tokenizer
from tests import snapshots as s

FIRES = {
    "Llama 2": s.with_model(s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Absent(), s.Known("</s>")))),
    "Llama 2 in OpenRLHF": s.with_model(
        s.with_package(s.h200(), "openrlhf", "0.11.2"),
        tokenizer=s.Known(Tokenizer(s.Known("right"), s.Absent(), s.Known("</s>"))),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a padding token": s.with_model(
        s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>")))
    ),
    "no EOS token either": s.with_model(
        s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Absent(), s.Absent()))
    ),
    "damaged": s.with_model(
        s.h200(), tokenizer=s.Known(Tokenizer(s.Known("right"), s.Unreadable("a list"), s.Known("</s>")))
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "pad_token" in text
