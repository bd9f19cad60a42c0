"""FlashAttention 4 cannot train on a visible GPU.

What it checks: the compute capability of every visible GPU against what flash-attn-4 4.0.0b36 accepts: forward on
8.x to 12.x, backward on 9.x to 12.x. For other releases of the beta this is a prediction.

Why it matters: `AssertionError: Unsupported compute capability`, on Ampere and Ada only when the first backward runs.

What to do: use flash_attention_2 or sdpa on this GPU.

Source: flash_attn_4 4.0.0b36 flash_attn/cute/interface.py lines 845 (forward) and 2288 (backward).
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import FLASH4_BACKWARD, FLASH4_FORWARD, FLASH4_VERSION
from attncheck.doctor.queries import gpus as hardware
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each generation of visible GPUs that flash-attn-4 refuses."""
    package = snapshot.package("flash-attn-4")
    if not isinstance(package, Known):
        return
    version = package.value.version
    gpus = hardware.capabilities(hardware.visible(snapshot))
    for group in hardware.alike(gpu for gpu, capability in gpus if capability[0] not in FLASH4_BACKWARD):
        forward = hardware.capabilities(group)[0][1][0] in FLASH4_FORWARD
        other = "flash_attention_2" if forward and snapshot.has("flash-attn") else "sdpa"
        yield Problem(
            message=f"flash-attn-4 {version} has no {'backward' if forward else 'kernels'} for {hardware.named(group)}",
            subject=f"flash-attn-4 {version}",
            evidence=(
                *hardware.told(group),
                *(() if version == FLASH4_VERSION else (f"read in {FLASH4_VERSION}, not in this release",)),
            ),
            fixes=(install.attn_implementation(snapshot, other),),
            predicted=version != FLASH4_VERSION,
        )


RULE = Rule("ATN219", "warning", check, needs=frozenset({"flash"}))
