"""Gradient checkpointing on against off."""

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
    """Return "" where the plan checkpoints."""
    return "" if plan.gradient_checkpointing else "the plan does not use gradient checkpointing"


def prove(bed: Bed) -> CheckResult:
    """Measure."""
    from attncheck.smoke.worker.checks import checkpointing

    return checkpointing.prove(bed)


def message(proof: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"gradient checkpointing does not do what it should: {deciding_reason(proof)}"


def changes(plan: Plan, proof: CheckResult) -> Iterable[Change]:
    """Yield to train without checkpointing."""
    if plan.gradient_checkpointing:
        without = replace(plan, gradient_checkpointing=False)
        yield Change("train without gradient checkpointing", "setting", "gradient_checkpointing=False", without)


PROVING = Proving(
    "checkpointing",
    "gradient checkpointing changes nothing but memory",
    "ATN343",
    60,
    applies,
    prove,
    message,
    changes,
)
