"""Checks that two runs have the same bits, if the plan requires that."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason

CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
FLASH_DETERMINISTIC = ("FLASH_ATTENTION_DETERMINISTIC", "1")


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield environment variables, then other implementations."""
    names = {name for name, _ in plan.environ}
    missing = [variable for variable in (FLASH_DETERMINISTIC, CUBLAS_WORKSPACE) if variable[0] not in names]
    for variables in ([missing[0]], missing) if len(missing) > 1 else ([missing] if missing else []):
        text = "\n".join(f"export {name}={value}" for name, value in variables)
        title = " and ".join(name for name, _ in variables)
        yield Change(title, "env", text, replace(plan, environ=(*plan.environ, *variables)))
    yield from plan_changes.propose_implementations(plan, ("sdpa", "eager"))


CHECK = SmokeCheck(
    name="reproducible",
    title="two runs are bitwise identical",
    code="ATN720",
    order=70,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.determinism:run",
    message=lambda result: f"training is not reproducible: {deciding_reason(result)}",
    changes=propose_changes,
)
