"""liger-kernel is installed without triton.

What it checks: whether any distribution that brings the module `triton` is installed, on a machine with a GPU. Where
the module was imported all the same, nothing is said.

Why it matters: liger-kernel's operations are triton kernels; its import raises "No module named 'triton'".

What to do: install the triton that belongs to the installed torch.

Source: liger_kernel 0.8.5 METADATA (`triton>=2.3.1`) and `liger_kernel/ops/*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known, need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Rule

TRITONS = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "triton-windows", "pytorch-triton-xpu")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where liger-kernel's kernels have nothing to be compiled with."""
    if not snapshot.has("liger-kernel") or snapshot.has(*TRITONS) or not snapshot.visible_devices():
        return
    for module in ("triton", "liger_kernel.transformers"):
        outcome = snapshot.imported(module)
        if isinstance(outcome, Known) and outcome.value.outcome == "ok":
            return
    liger = need(snapshot.package("liger-kernel"), "liger-kernel").version
    torch = snapshot.package("torch")
    asked = (
        [str(r) for r in requirements.demands_of(snapshot, torch.value, "triton")] if isinstance(torch, Known) else []
    )
    yield Problem(
        message=f"liger-kernel {liger} needs triton, which is not installed",
        subject=f"liger-kernel {liger}",
        evidence=("none of " + ", ".join(TRITONS[:4]) + " is installed",),
        fixes=(install.install(snapshot, *([request.partition(";")[0] for request in asked] or ["triton"])),),
    )


RULE = Rule("ATN152", "error", check, needs=frozenset({"liger"}))
