"""Cases for ATN313."""

from __future__ import annotations

from dataclasses import replace

from tests import snapshots as s
from tests.doctor.answers import answers_refusing, answers_with_text

FIRES = {
    "by the table of releases, a GB10": s.with_gpus(
        s.with_model(
            s.with_package(s.h200(), "transformers", "5.5.0"),
            model_type="gpt_oss",
            sinks=True,
            accepts=s.Absent("not asked"),
        ),
        (12, 1),
    ),
    "flash-attn-4 is installed, and flash_attention_2 is requested": s.with_model(
        s.with_package(s.with_package(s.h200(), "transformers", "5.17.0"), "flash-attn-4", "4.0.0b36"),
        model_type="gpt_oss",
        sinks=True,
        accepts=answers_with_text(
            "flash_attention_2", "not installed: needs the Hub kernel kernels-community/vllm-flash-attn3", "sdpa"
        ),
    ),
    "gpt_oss, nothing cached": s.with_model(
        s.with_package(s.h200(), "transformers", "5.17.0"),
        model_type="gpt_oss",
        sinks=True,
        accepts=answers_with_text(
            "flash_attention_2", "not installed: needs the Hub kernel kernels-community/vllm-flash-attn3", "sdpa"
        ),
    ),
    "an A100": s.with_model(
        s.with_gpus(
            s.with_package(
                replace(s.h200(), hub=replace(s.h200().hub, kernels=("kernels-community/vllm-flash-attn3",))),
                "transformers",
                "5.17.0",
            ),
            (8, 0),
        ),
        model_type="gpt_oss",
        sinks=True,
        accepts=answers_with_text(
            "flash_attention_2", "not installed: needs the Hub kernel kernels-community/vllm-flash-attn3", "sdpa"
        ),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "the launch requests the kernel that has sinks": s.with_job(
        s.with_model(
            s.with_package(s.h200(), "transformers", "5.17.0"),
            model_type="gpt_oss",
            sinks=True,
            accepts=answers_with_text(
                "flash_attention_2", "not installed: needs the Hub kernel kernels-community/vllm-flash-attn3", "sdpa"
            ),
        ),
        {"attn_implementation": "kernels-community/vllm-flash-attn3"},
    ),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "the kernel is cached": s.with_model(
        s.with_package(
            replace(s.h200(), hub=replace(s.h200().hub, kernels=("kernels-community/vllm-flash-attn3",))),
            "transformers",
            "5.17.0",
        ),
        model_type="gpt_oss",
        sinks=True,
        accepts=answers_with_text(
            "flash_attention_2", "not installed: needs the Hub kernel kernels-community/vllm-flash-attn3", "sdpa"
        ),
    ),
    "flash_attention_4, which the class lists": s.with_job(
        s.with_model(
            s.with_package(s.h200(), "transformers", "5.17.0"),
            model_type="gpt_oss",
            sinks=True,
            accepts=answers_refusing("sdpa"),
        ),
        {"attn_implementation": "flash_attention_4"},
    ),
    "before the redirection": s.with_model(
        s.with_package(s.h200(), "transformers", "5.2.0"),
        model_type="gpt_oss",
        sinks=True,
        accepts=answers_refusing("sdpa"),
    ),
    "the table of releases, before the redirection": s.with_model(
        s.with_package(s.h200(), "transformers", "5.2.0"),
        model_type="gpt_oss",
        sinks=True,
        accepts=s.Absent("not asked"),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "vllm-flash-attn3" in text and "flex_attention" in text
