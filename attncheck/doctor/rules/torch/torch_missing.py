"""torch is not installed.

What it checks: whether the distribution torch is in the examined environment.

Why it matters: flash-attn, ring-flash-attn, liger-kernel and every training framework are built on it. flash-attn's
setup.py imports it, so it must be installed first.

What to do: install torch for a CUDA version that the driver supports; the finding has the command.

Source: setup.py of the flash-attn 2.8.3 source distribution (`import torch` at the top).
"""

from attncheck.doctor.fixes.torch import install_torch
from attncheck.doctor.queries.packages import can_import
from attncheck.doctor.rules import Absent, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.torch, Absent) or snapshot.has("torch") or can_import(snapshot, "torch"):
        return
    reason = f": {snapshot.torch.reason}" if snapshot.torch.reason else ""
    yield Problem(
        message="torch is not installed; all attention needs it",
        subject="torch",
        evidence=(f"static lane: no torch in this environment{reason}",),
        fixes=(install_torch(snapshot),),
    )


RULE = Rule("ATN101", "error", check, needs=frozenset({"flash", "ring", "rl", "liger"}))
