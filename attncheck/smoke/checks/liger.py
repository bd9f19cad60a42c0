"""Liger on against off, and which of its patches take effect."""

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
    """Return "" where the plan uses liger."""
    return "" if plan.liger else "the plan does not use liger"


def prove(bed: Bed) -> CheckResult:
    """Measure."""
    from attncheck.smoke.worker.checks import liger

    return liger.prove(bed)


def message(proof: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"liger-kernel changes this model in another way than it should: {deciding_reason(proof)}"


def changes(plan: Plan, proof: CheckResult) -> Iterable[Change]:
    """Yield to train without liger."""
    if plan.liger:
        yield Change("train without liger", "setting", "use_liger_kernel=False", replace(plan, liger=False))


PROVING = Proving("liger", "liger computes what the model does", "ATN341", 50, applies, prove, message, changes)
