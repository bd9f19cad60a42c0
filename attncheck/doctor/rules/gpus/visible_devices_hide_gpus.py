"""CUDA_VISIBLE_DEVICES hides GPUs that it seems to name, or all of them.

What it checks: the entries of CUDA_VISIBLE_DEVICES against the GPUs that are there. CUDA stops reading at the first
entry that names no GPU, so that it and all that follow are hidden; an entry that is repeated hides everything.

Why it matters: `torch.cuda.is_available()` is False, or ranks die with "invalid device ordinal". Inside a container or
a Slurm step GPUs are numbered anew from 0, so that a number copied from outside is often wrong.

What to do: unset the variable, or name GPUs that exist.

Source: NVIDIA CUDA C++ Programming Guide, "CUDA Environment Variables"; torch 2.13.0 torch/cuda/__init__.py
`_parse_visible_devices`.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.queries import gpus as hardware
from attncheck.doctor.rules import Rule

NAME = "CUDA_VISIBLE_DEVICES"


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where fewer GPUs are visible than the variable names, or none."""
    setting = snapshot.env(NAME)
    if not isinstance(setting, Known) or hardware.torch_cuda(snapshot) is None:
        return
    gpus = hardware.devices(snapshot)
    seen = [gpu for gpu in gpus if gpu.visible]
    named = [word for word in setting.value.split(",") if word.strip()]
    enough = bool(seen) and (len(seen) >= len(named) or setting.value.strip().startswith("MIG-"))
    if not gpus or enough:
        return
    count = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    said = f'{NAME}="{_shown(setting.value)}"'
    yield Problem(
        message=f"{said} leaves {len(seen)} of {count} visible"
        + (f" though it names {len(named)}" if len(named) > len(seen) else ""),
        subject=NAME,
        evidence=(said, *hardware.told(gpus)),
        fixes=(
            install.unset(NAME, "use every GPU"),
            install.export(NAME, ",".join(str(gpu.index) for gpu in gpus), "or name GPUs that exist"),
        ),
    )


def _shown(value: str) -> str:
    """Return the setting without UUIDs, which tell one machine from another."""
    words = (word.strip() for word in value.split(","))
    return ",".join(word[:4] + "…" if word.startswith(("GPU-", "MIG-")) else word for word in words)


RULE = Rule("ATN213", "error", check)
