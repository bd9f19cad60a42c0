"""Liger on against off, and which of its patches take effect."""

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck


def applies(plan: Plan) -> str:
    """Return "" where the plan uses liger."""
    return "" if plan.liger else "the plan does not use liger"


def describe_failure(result: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"liger-kernel changes this model in another way than it should: {deciding_reason(result)}"


def propose_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Yield the plan without liger."""
    if plan.liger:
        yield Change("train without liger", "setting", "use_liger_kernel=False", replace(plan, liger=False))


CHECK = SmokeCheck(
    name="liger",
    title="liger computes what the model does",
    code="ATN341",
    order=50,
    applies=applies,
    worker="attncheck.smoke.worker.checks.liger:run",
    message=describe_failure,
    changes=propose_changes,
    names_errors=True,
)
