"""Checks that batches padded on either side equal the unpadded documents."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import SIDES
from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield the plan without a cache, padded on the other side, and with other implementations."""
    yield from plan_changes.propose_without_cudnn(plan, result)
    if plan.use_cache:
        text = "model.config.use_cache = False"
        yield Change("train without the cache", "setting", text, replace(plan, use_cache=False))
    other = next(side for side in SIDES if side != plan.padding_side)
    text = f'tokenizer.padding_side = "{other}"'
    yield Change(f"padding on the {other}", "setting", text, replace(plan, padding_side=other))
    yield from plan_changes.propose_implementations(plan)


CHECK = SmokeCheck(
    name="padding",
    title="padded batches give the same results as unpadded ones",
    code="ATN421",
    order=30,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.padding:run",
    message=lambda result: f"padding changes the result: {deciding_reason(result)}",
    changes=propose_changes,
)
