"""Cases for ATN307."""

from __future__ import annotations

from tests import snapshots as s
from tests.doctor.answers import FUSED_IMPLEMENTATIONS, answers_refusing

FIRES = {
    "gemma2 under transformers 5.23": s.with_model(
        s.with_package(s.h200(), "transformers", "5.23.0"), model_type="gemma2", accepts=answers_refusing("sdpa")
    ),
    "transformers was not asked, but the model has attention sinks": s.with_model(
        s.h200(), model_type="gpt_oss", sinks=True, accepts=s.Absent("not asked")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "everything refused: another rule speaks": s.with_model(s.h200(), accepts=answers_refusing(*FUSED_IMPLEMENTATIONS)),
    "transformers was not asked": s.with_model(s.h200(), accepts=s.Unreadable("the import lane did not run")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "does not support sdpa" in text and ("flash_attention_2" in text or "flex_attention" in text)
