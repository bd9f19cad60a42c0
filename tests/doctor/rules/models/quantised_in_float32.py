"""Cases for ATN355."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "4 bits, float32": s.with_model(s.h200(), quantised_dtype=s.Known("float32")),
    "in a launch under flash attention": s.with_job(s.with_model(s.h200(), quantised_dtype=s.Known("float32"))),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "4 bits, bfloat16": s.with_model(s.h200(), quantised_dtype=s.Known("bfloat16")),
    "a launch under sdpa": s.with_job(
        s.with_model(s.h200(), quantised_dtype=s.Known("float32")), {"attn_implementation": "sdpa"}
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the field and its value."""
    return "bnb_4bit_compute_dtype=torch.bfloat16" in text
