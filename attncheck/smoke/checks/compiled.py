"""torch.compile on against off."""

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck


def applies(plan: Plan) -> str:
    """Return "" where the plan compiles."""
    return "" if plan.compile else "the plan does not use torch.compile"


def describe_failure(result: CheckResult) -> str:
    """Return what is wrong, in a line."""
    return f"torch.compile does not keep what this model computes: {deciding_reason(result)}"


def propose_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Yield the plan without torch.compile."""
    if plan.compile:
        yield Change("train without torch.compile", "setting", "torch_compile=False", replace(plan, compile=False))


CHECK = SmokeCheck(
    name="compiled",
    title="torch.compile changes nothing but speed",
    code="ATN344",
    order=65,
    applies=applies,
    worker="attncheck.smoke.worker.checks.compiled:run",
    message=describe_failure,
    changes=propose_changes,
    names_errors=True,
)
