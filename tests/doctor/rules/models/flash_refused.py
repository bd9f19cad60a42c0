"""Cases for ATN308."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED_IMPLEMENTATIONS, answers_refusing, answers_with_text

FIRES = {
    "mllama": s.with_model(s.h200(), model_type="mllama", accepts=answers_refusing("flash_attention_2")),
    "mllama alongside OpenRLHF": s.with_model(
        s.with_package(s.h200(), "openrlhf", "0.11.2"), accepts=answers_refusing("flash_attention_2")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "flash-attn is what is missing": s.with_model(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"),
        accepts=answers_with_text("flash_attention_2", "not installed: FlashAttention2 has been toggled on"),
    ),
    "turned into another kernel": s.with_model(
        s.h200(),
        accepts=answers_with_text(
            "flash_attention_2", "refused: transformers turns it into kernels-community/vllm-flash-attn3"
        ),
    ),
    "everything refused: another rule speaks": s.with_model(s.h200(), accepts=answers_refusing(*FUSED_IMPLEMENTATIONS)),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "refuses flash attention" in text and "sdpa" in text
