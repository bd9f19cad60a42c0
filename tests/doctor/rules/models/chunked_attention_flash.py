"""Cases for ATN316."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import answers_refusing

FIRES = {
    "flash accepted": s.with_model(
        s.h200(),
        model_type="llama4",
        layer_types=("chunked_attention", "full_attention"),
        attention_chunk_size=s.Known(8192),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash refused by the class": s.with_model(
        s.h200(),
        accepts=answers_refusing("flash_attention_2"),
        model_type="llama4",
        layer_types=("chunked_attention", "full_attention"),
        attention_chunk_size=s.Known(8192),
    ),
    "no chunked layer": s.with_model(s.h200(), attention_chunk_size=s.Known(8192)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "8192" in text and "sdpa" in text
