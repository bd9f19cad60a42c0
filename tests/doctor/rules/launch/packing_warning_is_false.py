"""Cases for ATN456."""

from __future__ import annotations

from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

PINNED = "kernels-community/flash-attn2@v2"


def pack(implementation: str = PINNED, version: str = "1.5.0", packing: str = "position_ids") -> Snapshot:
    plan: dict[str, Any] = {"attn_implementation": implementation, "packing": packing}
    return s.with_job(s.h200(), plan, framework="trl", version=version)


FIRES = {
    "a pinned revision": pack(),
    "a named kernel": pack("kernels-community/vllm-flash-attn3:attention"),
    "1.12.0": pack(version="1.12.0"),
}
SILENT = {
    "a newer TRL": pack(version="1.13.0"),
    "the bare name, which TRL knows": pack("kernels-community/flash-attn2"),
    "no packing": pack(packing="padding"),
    "another kernel": pack("kernels-community/sage-attention@v1"),
    "another framework": s.with_job(s.h200(), {"attn_implementation": PINNED, "packing": "position_ids"}),
    "a fork's version": pack(version="mine"),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "leave packing on" in text and "revision" in text
