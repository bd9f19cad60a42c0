"""Checks that a training run learns what can be learned, and no more."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield changes that may make it learn: other tensors, no packing, another precision, other implementations."""
    yield from plan_changes.propose_without_cudnn(plan, result)
    yield from plan_changes.propose_collator_changes(plan)
    if plan.precision == "fp16":
        yield Change("bfloat16", "setting", "dtype=torch.bfloat16", replace(plan, precision="bf16"))
    if plan.packed:
        yield plan_changes.propose_no_packing(plan)
    yield from plan_changes.propose_implementations(plan)


CHECK = SmokeCheck(
    name="training",
    title="training learns as expected",
    code="ATN430",
    order=40,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.training:run",
    message=lambda result: f"training goes wrong: {deciding_reason(result)}",
    changes=propose_changes,
)
