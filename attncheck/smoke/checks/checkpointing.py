"""Gradient checkpointing on against off."""

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck


def applies(plan: Plan) -> str:
    """Return "" where the plan checkpoints."""
    return "" if plan.gradient_checkpointing else "the plan does not use gradient checkpointing"


def describe_failure(result: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"gradient checkpointing does not do what it should: {deciding_reason(result)}"


def propose_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Yield the plan without checkpointing."""
    if plan.gradient_checkpointing:
        unchecked = replace(plan, gradient_checkpointing=False)
        yield Change("train without gradient checkpointing", "setting", "gradient_checkpointing=False", unchecked)


CHECK = SmokeCheck(
    name="checkpointing",
    title="gradient checkpointing changes nothing but memory",
    code="ATN343",
    order=60,
    applies=applies,
    worker="attncheck.smoke.worker.checks.checkpointing:run",
    message=describe_failure,
    changes=propose_changes,
    names_errors=True,
)
