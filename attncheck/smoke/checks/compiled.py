"""torch.compile on against off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def applies(plan: Plan) -> str:
    """Return "" where the plan compiles."""
    return "" if plan.compile else "the plan does not use torch.compile"


def prove(bed: Bed) -> CheckResult:
    """Measure."""
    from attncheck.smoke.worker.checks import compiled

    return compiled.prove(bed)


def message(proof: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"torch.compile does not keep what this model computes: {deciding_reason(proof)}"


def changes(plan: Plan, proof: CheckResult) -> Iterable[Change]:
    """Yield to train without torch.compile."""
    if plan.compile:
        yield Change("train without torch.compile", "setting", "torch_compile=False", replace(plan, compile=False))


PROVING = Proving("compiled", "torch.compile changes nothing but speed", "ATN344", 65, applies, prove, message, changes)
