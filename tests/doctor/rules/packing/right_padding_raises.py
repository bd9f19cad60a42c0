"""Cases for ATN404."""

from __future__ import annotations

from attncheck.core.model import Tokenizer
from tests import snapshots as s

FIRES = {
    "qwen2_moe under 4.57.3": s.with_model(
        s.with_package(s.h200(), "transformers", "4.57.3"),
        model_type="qwen2_moe",
        tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>"))),
    ),
    "mistral under 4.52.4, side left out": s.with_model(
        s.with_package(s.h200(), "transformers", "4.52.4"),
        model_type="mistral",
        tokenizer=s.Known(Tokenizer(s.Absent(), s.Known("<pad>"), s.Known("</s>"))),
    ),
}
TRANSFORMERS_4_57 = s.with_model(s.with_package(s.h200(), "transformers", "4.57.3"), model_type="qwen2_moe")
FIRES["a launch that pads on the right"] = s.with_job(TRANSFORMERS_4_57, {"packing": "padding"})
SILENT = {
    "a launch that packs": s.with_job(TRANSFORMERS_4_57),
    "a launch that pads on the left": s.with_job(TRANSFORMERS_4_57, {"packing": "padding", "padding_side": "left"}),
    "a launch under sdpa": s.with_job(TRANSFORMERS_4_57, {"packing": "padding", "attn_implementation": "sdpa"}),
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "qwen2_moe under 5.0.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.0.0"),
        model_type="qwen2_moe",
        tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>"))),
    ),
    "mistral under 4.53.0": s.with_model(
        s.with_package(s.h200(), "transformers", "4.53.0"),
        model_type="mistral",
        tokenizer=s.Known(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>"))),
    ),
    "left padding": s.with_model(
        s.with_package(s.h200(), "transformers", "4.57.3"),
        model_type="qwen2_moe",
        tokenizer=s.Known(Tokenizer(s.Known("left"), s.Known("<pad>"), s.Known("</s>"))),
    ),
    "no tokenizer": s.with_model(s.with_package(s.h200(), "transformers", "4.57.3"), model_type="qwen2_moe"),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "use_cache" in text and "padding_side" in text
