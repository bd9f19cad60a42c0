"""The launch asks for bfloat16 and the GPUs have none.

What it checks: the launch's precision against the compute capability of the GPUs that the job would see.

Why it matters: below sm_80 torch emulates bfloat16 through float32, slowly; `torch.cuda.is_bf16_supported()` says True
all the same, which is what frameworks ask.

What to do: float16 with loss scaling, where the framework trains in it; or newer GPUs.

Source: torch 2.13.0 torch/cuda/__init__.py `is_bf16_supported` (`including_emulation=True`).
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.gpus import BF16_OLDEST
from attncheck.doctor.queries import gpus as hardware
from attncheck.doctor.queries.launch import job_of, named, setting, where
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where bfloat16 would be emulated."""
    job = job_of(snapshot)
    if job.plan.precision not in ("bf16", "autocast"):
        return
    gpus = hardware.visible(snapshot)
    old = [gpu for gpu, capability in hardware.capabilities(gpus) if capability < BF16_OLDEST]
    if not old:
        return
    fix = setting("train in float16", {"precision": "fp16"})
    yield Problem(
        message=f"{named(job)} trains in bfloat16, which {hardware.named(old)} emulates slowly",
        evidence=hardware.told(old),
        fixes=() if job.reinforcement else (fix,),
        subject=named(job),
        locations=where(job, "precision"),
    )


RULE = Rule("ATN451", "warning", check, needs=frozenset({"job"}))
