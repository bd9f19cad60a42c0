"""Two runs have the same bits, where the plan asks for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke import plan_changes as choices
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
FLASH = ("FLASH_ATTENTION_DETERMINISTIC", "1")


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    from attncheck.smoke.worker.checks import determinism

    return determinism.prove(bed)


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield environment variables, then other implementations."""
    names = {name for name, _ in plan.environ}
    added = [variable for variable in (FLASH, WORKSPACE) if variable[0] not in names]
    for chosen in ([added[0]], added) if len(added) > 1 else ([added] if added else []):
        text = "\n".join(f"export {name}={value}" for name, value in chosen)
        title = " and ".join(name for name, _ in chosen)
        yield Change(title, "env", text, replace(plan, environ=(*plan.environ, *chosen)))
    for name in ("sdpa", "eager"):
        if name != plan.attn_implementation:
            yield choices.implementation(replace(plan, attn_implementation=name))


PROVING = Proving(
    name="reproducible",
    title="two runs have the same bits",
    code="ATN720",
    order=70,
    applies=lambda plan: "",
    prove=prove,
    message=lambda proof: f"training is not reproducible: {deciding_reason(proof)}",
    changes=changes,
)
