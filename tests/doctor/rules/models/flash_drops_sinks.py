"""Cases for ATN312."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "gpt_oss under transformers 5.2.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.2.0"), model_type="gpt_oss", sinks=True
    ),
    "gpt_oss under transformers 4.55.0": s.with_model(
        s.with_package(s.h200(), "transformers", "4.55.0"), model_type="gpt_oss", sinks=True
    ),
    "and the launch requests it": s.with_job(
        s.with_model(s.with_package(s.h200(), "transformers", "5.2.0"), model_type="gpt_oss", sinks=True)
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "the launch requests the kernel that has sinks": s.with_job(
        s.with_model(
            s.with_package(s.h200(), "transformers", "5.2.0"),
            model_type="gpt_oss",
            sinks=True,
        ),
        {"attn_implementation": "kernels-community/vllm-flash-attn3"},
    ),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "redirected in 5.3.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.3.0"), model_type="gpt_oss", sinks=True
    ),
    "no sinks": s.with_model(s.with_package(s.h200(), "transformers", "5.2.0")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "sinks" in text
