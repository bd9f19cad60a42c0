"""liger-kernel's patches cannot be imported.

What it checks: how importing `liger_kernel.transformers` with its patches ended in a child process. Failures that other
rules explain are left to them: transformers too old (ATN150), triton missing (ATN152), torch or transformers broken.

Why it matters: `use_liger_kernel=True` stops the job, or a framework goes on without it.

What to do: read the exception; reinstall liger-kernel, or switch it off.

Source: the import lane's own observation.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import liger as knowledge
from attncheck.doctor.knowledge.transformers import row
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Rule
from attncheck.doctor.rules.transformers.liger_without_triton import TRITONS

FAILED = ("raised", "died", "hung")
BELOW = ("torch", "triton", "transformers", "transformers.modeling_utils", "peft")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the import failed and nothing below it did."""
    if not snapshot.has("liger-kernel"):
        return
    outcome = need(snapshot.imported("liger_kernel.transformers"), "how importing liger_kernel ended")
    if outcome.outcome not in FAILED or _explained(snapshot):
        return
    liger = need(snapshot.package("liger-kernel"), "liger-kernel").version
    how = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    reinstall = ("--no-deps", "--force-reinstall")
    yield Problem(
        message=f"importing liger_kernel.transformers {liger} {outcome.outcome}",
        subject=f"liger-kernel {liger}",
        evidence=(f"import lane: {how or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(
            *install.patience(outcome),
            Fix("do without it", "setting", "use_liger_kernel=False"),
            install.install(snapshot, f"liger-kernel=={liger}", options=reinstall, title="reinstall it"),
        ),
    )


def _explained(snapshot: Snapshot) -> bool:
    """Say whether another rule knows why."""
    liger, transformers = snapshot.version("liger-kernel"), snapshot.version("transformers")
    if not snapshot.has(*TRITONS):
        return bool(snapshot.visible_devices())
    if isinstance(liger, Known) and isinstance(transformers, Known):
        wanted = row(knowledge.TRANSFORMERS, liger.value)
        if wanted is not None and not requirements.allowed(wanted, transformers.value):
            return True
    found = (snapshot.imported(module) for module in BELOW)
    return any(isinstance(other, Known) and other.value.outcome in FAILED for other in found)


RULE = Rule("ATN153", "error", check, needs=frozenset({"liger"}))
