"""Cases for ATN452."""

from dataclasses import replace
from typing import Any

from tests import snapshots as s

BARE = s.without_packages(s.h200(), "flash-attn", "ring-flash-attn", "liger-kernel", "flash-attn-3", "kernels")
NOT_IMPORTED = replace(BARE, imports=s.Absent("not asked"), interfaces=s.Absent("not asked"))
NO_IMPORTS: dict[str, Any] = {"imports": ()}
FIRES = {
    "imported whatever the settings": s.with_job(NOT_IMPORTED, {"attn_implementation": "sdpa"}),
    "asked for": s.with_job(NOT_IMPORTED, **NO_IMPORTS),
    "flash_attention_3": s.with_job(NOT_IMPORTED, {"attn_implementation": "flash_attention_3"}, **NO_IMPORTS),
    "the ring": s.with_job(s.with_package(NOT_IMPORTED, "flash-attn", "2.8.3"), {"ring_size": 2}),
    "liger": s.with_job(s.with_package(NOT_IMPORTED, "flash-attn", "2.8.3"), {"liger": True}),
}
FIRES["flash_attention_4"] = s.with_job(NOT_IMPORTED, {"attn_implementation": "flash_attention_4"}, **NO_IMPORTS)
SILENT = {
    "no launch": NOT_IMPORTED,
    "all there": s.with_job(s.h200(), {"ring_size": 2}),
    "sdpa": s.with_job(NOT_IMPORTED, {"attn_implementation": "sdpa"}, **NO_IMPORTS),
}


def says(findings: str) -> bool:
    """Return whether the package is named."""
    return "which is not installed" in findings
