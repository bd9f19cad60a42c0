"""Padded batches equal the unpadded, on either side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import SIDES, Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke import plan_changes as choices
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    from attncheck.smoke.worker.checks import padding

    return padding.prove(bed)


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield no cache, the other side, another implementation."""
    if plan.use_cache:
        text = "model.config.use_cache = False"
        yield Change("no cache while training", "setting", text, replace(plan, use_cache=False))
    other = next(side for side in SIDES if side != plan.padding_side)
    text = f'tokenizer.padding_side = "{other}"'
    yield Change(f"padding on the {other}", "setting", text, replace(plan, padding_side=other))
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            yield choices.implementation(replace(plan, attn_implementation=name))


PROVING = Proving(
    name="padding",
    title="padded batches equal the unpadded",
    code="ATN421",
    order=30,
    applies=lambda plan: "",
    prove=prove,
    message=lambda proof: f"padding changes the result: {deciding_reason(proof)}",
    changes=changes,
)
