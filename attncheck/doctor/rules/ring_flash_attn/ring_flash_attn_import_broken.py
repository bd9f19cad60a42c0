"""Importing ring-flash-attn fails, though flash-attn and transformers can be imported.

What it checks: how `import ring_flash_attn` ended in a child process. Failures that another rule explains are left to
it: transformers' moved names (ATN140, ATN141, ATN143, ATN145), flash-attn missing (ATN142) or broken, torch or
transformers broken.

Why it matters: context parallel training cannot start.

What to do: read the exception; reinstall ring-flash-attn if its files are damaged.

Source: the import lane's own observation.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.environment import ImportOutcome
from attncheck.core.facts import Known, need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.rules import Rule
from attncheck.doctor.rules.ring_flash_attn import ring_flash_attn_import

BELOW = ("torch", "transformers", ring_flash_attn_import.MODULE, "flash_attn", "flash_attn_2_cuda")
FAILED = ("raised", "died", "hung")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the import failed and nothing below it did."""
    if not snapshot.has("ring-flash-attn"):
        return
    outcome = need(snapshot.imported("ring_flash_attn"), "how importing ring_flash_attn ended")
    if outcome.outcome not in FAILED or _explained(snapshot, outcome):
        return
    ring = need(snapshot.package("ring-flash-attn"), "ring-flash-attn").version
    how = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    yield Problem(
        message=f"importing ring_flash_attn {ring} {outcome.outcome}",
        subject=f"ring-flash-attn {ring}",
        evidence=(f"import lane: {how or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(
            *install.patience(outcome),
            install.install(
                snapshot, f"ring-flash-attn=={ring}", options=("--no-deps", "--force-reinstall"), title="reinstall it"
            ),
        ),
    )


def _explained(snapshot: Snapshot, outcome: ImportOutcome) -> bool:
    """Say whether another rule knows why."""
    if f"from '{ring_flash_attn_import.MODULE}'" in outcome.message or not snapshot.has("flash-attn"):
        return True
    found = (snapshot.imported(module) for module in BELOW)
    return any(isinstance(other, Known) and other.value.outcome in FAILED for other in found)


RULE = Rule("ATN144", "error", check, needs=frozenset({"ring"}))
