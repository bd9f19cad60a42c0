"""Cases for ATN452."""

from dataclasses import replace
from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

BARE = s.without_packages(s.h200(), "flash-attn", "ring-flash-attn", "liger-kernel", "flash-attn-3", "kernels")
NOT_IMPORTED = replace(BARE, imports=s.Absent("not asked"), interfaces=s.Absent("not asked"))
NO_IMPORTS: dict[str, Any] = {"imports": ()}


def with_kernels(transformers: str, kernels: str) -> Snapshot:
    """Return the bare machine with these releases."""
    return s.with_package(s.with_package(NOT_IMPORTED, "transformers", transformers), "kernels", kernels)


FIRES = {
    "always imported": s.with_job(NOT_IMPORTED, {"attn_implementation": "sdpa"}),
    "requested": s.with_job(NOT_IMPORTED, **NO_IMPORTS),
    "flash_attention_3": s.with_job(NOT_IMPORTED, {"attn_implementation": "flash_attention_3"}, **NO_IMPORTS),
    "the ring": s.with_job(s.with_package(NOT_IMPORTED, "flash-attn", "2.8.3"), {"ring_size": 2}),
    "liger": s.with_job(s.with_package(NOT_IMPORTED, "flash-attn", "2.8.3"), {"liger": True}),
}
FIRES["flash_attention_4"] = s.with_job(NOT_IMPORTED, {"attn_implementation": "flash_attention_4"}, **NO_IMPORTS)
FIRES["flash_attention_3 alongside flash-attn 2"] = s.with_trl_job(
    s.with_import(s.with_package(NOT_IMPORTED, "flash-attn", "2.8.3"), "flash_attn"), "flash_attention_3"
)
FIRES["a kernel of the Hub"] = s.with_trl_job(NOT_IMPORTED, "kernels-community/flash-attn2")
FIRES["flash_attention_3 before 5.4, where flash-attn 2 is not replaced either"] = s.with_trl_job(
    s.with_package(s.with_package(with_kernels("5.3.0", "0.10.2"), "flash-attn", "2.8.3"), "ring-flash-attn", "0.1.8"),
    "flash_attention_3",
)
GPT_OSS = s.with_model(with_kernels("5.5.0", "0.12.3"), model_type="gpt_oss", sinks=True, accepts=s.Absent("not asked"))
FIRES["kernels, which the class uses instead of the flash-attn that is installed"] = s.with_trl_job(
    s.without_packages(s.with_package(GPT_OSS, "flash-attn", "2.8.3"), "kernels"), "flash_attention_2"
)
SILENT = {
    "a class that uses a Hub kernel instead": s.with_trl_job(GPT_OSS, "flash_attention_2"),
    "flash_attention_3, for which transformers loads the Hub's": s.with_trl_job(
        with_kernels("5.17.0", "0.16.0"), "flash_attention_3"
    ),
    "a kernel of the Hub, and kernels": s.with_trl_job(
        with_kernels("5.17.0", "0.16.0"), "kernels-community/flash-attn2"
    ),
    "no launch": NOT_IMPORTED,
    "all there": s.with_job(s.h200(), {"ring_size": 2}),
    "sdpa": s.with_job(NOT_IMPORTED, {"attn_implementation": "sdpa"}, **NO_IMPORTS),
}


def says(findings: str) -> bool:
    """Return whether the package is named."""
    return "which is not installed" in findings and not ("vllm-flash-attn3" in findings and "use sdpa" in findings)
