"""Cases for ATN554."""

from tests import snapshots as s

WITH_VARIABLE = s.with_env(s.h200(), VLLM_ATTENTION_BACKEND="FLASH_ATTN")

FIRES = {
    "0.15.0": s.with_package(WITH_VARIABLE, "vllm", "0.15.0"),
    "0.26.0": s.with_package(WITH_VARIABLE, "vllm", "0.26.0"),
    "removed": s.with_package(s.with_env(s.h200(), VLLM_ATTENTION_BACKEND="XFORMERS"), "vllm", "0.26.0"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "0.14.1 reads it": s.with_package(WITH_VARIABLE, "vllm", "0.14.1"),
    "not set": s.with_package(s.h200(), "vllm", "0.26.0"),
    "no vllm": WITH_VARIABLE,
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds what to write instead."""
    return ("--attention-backend" in finding) != ("XFORMERS" in finding)
