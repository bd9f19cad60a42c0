"""Cases for ATN322."""

from __future__ import annotations

from dataclasses import replace

from tests import snapshots as s

FIRES = {
    "a type that liger does not list": s.with_model(
        s.with_interfaces(
            s.with_package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Known(("llama", "qwen2"))
        ),
        model_type="falcon",
    ),
}
NOT_IMPORTED = replace(s.with_package(s.h200(), "liger-kernel", "0.8.4"), interfaces=s.Absent("not asked"))
FIRES["a launch, by the table"] = s.with_job(s.with_model(NOT_IMPORTED, model_type="deepseek_v2"), {"liger": True})
FIRES["a release between two that were read"] = s.with_job(
    s.with_model(s.with_package(NOT_IMPORTED, "liger-kernel", "0.6.3"), model_type="gpt_oss"), {"liger": True}
)
SILENT = {
    "a launch, by the table: it knows the type": s.with_job(
        s.with_model(NOT_IMPORTED, model_type="deepseek_v3"), {"liger": True}
    ),
    "it may know the type already": s.with_job(
        s.with_model(s.with_package(NOT_IMPORTED, "liger-kernel", "0.6.3"), model_type="qwen3_next"), {"liger": True}
    ),
    "a release newer than the table": s.with_job(
        s.with_model(s.with_package(NOT_IMPORTED, "liger-kernel", "0.9.0"), model_type="falcon"), {"liger": True}
    ),
    "no launch, and it was not imported": s.with_model(NOT_IMPORTED, model_type="falcon"),
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a type that liger lists": s.with_model(
        s.with_interfaces(
            s.with_package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Known(("llama", "qwen2"))
        ),
        model_type="qwen2",
    ),
    "liger is not installed": s.with_model(s.without_packages(s.h200(), "liger-kernel"), model_type="falcon"),
    "liger was not imported": s.with_model(
        s.with_interfaces(s.with_package(s.h200(), "liger-kernel", "0.8.5"), liger_model_types=s.Unreadable("hung")),
        model_type="falcon",
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "liger-kernel 0" in text and ("use_liger_kernel" in text or "'liger': 'off'" in text)
