"""Cases for ATN452."""

from dataclasses import replace
from typing import Any

from tests import snapshots as s

BARE = s.without(s.h200(), "flash-attn", "ring-flash-attn", "liger-kernel", "flash-attn-3", "kernels")
UNTRIED = replace(BARE, imports=s.Absent("not asked"), interfaces=s.Absent("not asked"))
OTHER: dict[str, Any] = {"imports": ()}
FIRES = {
    "imported whatever the settings": s.job(UNTRIED, {"attn_implementation": "sdpa"}),
    "asked for": s.job(UNTRIED, **OTHER),
    "flash_attention_3": s.job(UNTRIED, {"attn_implementation": "flash_attention_3"}, **OTHER),
    "the ring": s.job(s.package(UNTRIED, "flash-attn", "2.8.3"), {"ring_size": 2}),
    "liger": s.job(s.package(UNTRIED, "flash-attn", "2.8.3"), {"liger": True}),
}
FIRES["flash_attention_4"] = s.job(UNTRIED, {"attn_implementation": "flash_attention_4"}, **OTHER)
SILENT = {
    "no launch": UNTRIED,
    "all there": s.job(s.h200(), {"ring_size": 2}),
    "sdpa": s.job(UNTRIED, {"attn_implementation": "sdpa"}, **OTHER),
}


def says(findings: str) -> bool:
    """Say whether the package is told."""
    return "which is not installed" in findings
