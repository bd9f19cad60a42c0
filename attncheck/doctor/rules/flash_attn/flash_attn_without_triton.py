"""flash-attn's cross entropy has no triton to run on.

What it checks: openrlhf or verl beside flash-attn on a machine with a GPU, and no triton, or one whose import failed.
With VERL_DISABLE_FLASH_ATTN_CE=1 verl does not use it; where liger-kernel is installed ATN152 says the same.

Why it matters: `flash_attn.ops.triton.cross_entropy` computes the log-probabilities; without triton its import fails,
and the frameworks take a slower path that needs a multiple of the memory, or stop.

What to do: install the triton that torch names.

Source: flash-attn 2.8.3, `flash_attn/ops/triton/cross_entropy.py` (`import triton`); verl 0.9.1,
`utils/torch_functional.py` lines 88-95; openrlhf 0.11.2, `models/utils.py` line 180.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.torch import TRITONS, triton_of_torch
from attncheck.doctor.queries.packages import failed, imports_fine, told, torch_works
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the triton kernels of flash-attn cannot be compiled."""
    if not snapshot.has("flash-attn") or not snapshot.has("openrlhf", "verl") or not snapshot.visible_devices():
        return
    if not torch_works(snapshot) or imports_fine(snapshot, "triton"):
        return
    if not snapshot.has("openrlhf") and snapshot.env("VERL_DISABLE_FLASH_ATTN_CE") == Known("1"):
        return
    outcome = failed(snapshot, "triton")
    if outcome is None and (snapshot.has(*TRITONS) or snapshot.has("liger-kernel")):
        return
    yield Problem(
        message="flash-attn's cross entropy needs triton, which "
        + ("cannot be imported" if outcome else "is not installed"),
        subject="triton",
        evidence=(told(outcome) if outcome else f"static lane: none of {', '.join(TRITONS[:3])} is installed",),
        fixes=(install.install(snapshot, triton_of_torch(snapshot) or "triton", options=("--no-deps",)),),
    )


RULE = Rule("ATN121", "warning", check, needs=frozenset({"rl"}))
