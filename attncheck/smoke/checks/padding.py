"""Padded batches equal the unpadded, on either side."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import SIDES, Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke import plan_changes
from attncheck.smoke.checks import SmokeCheck


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield the plan without a cache, padded on the other side, and with other implementations."""
    yield from plan_changes.propose_without_cudnn(plan, result)
    if plan.use_cache:
        text = "model.config.use_cache = False"
        yield Change("no cache while training", "setting", text, replace(plan, use_cache=False))
    other = next(side for side in SIDES if side != plan.padding_side)
    text = f'tokenizer.padding_side = "{other}"'
    yield Change(f"padding on the {other}", "setting", text, replace(plan, padding_side=other))
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            yield plan_changes.propose_implementation(replace(plan, attn_implementation=name))


CHECK = SmokeCheck(
    name="padding",
    title="padded batches equal the unpadded",
    code="ATN421",
    order=30,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.padding:run",
    message=lambda result: f"padding changes the result: {deciding_reason(result)}",
    changes=propose_changes,
)
