"""Packed documents do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke import plan_changes as choices
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    from attncheck.smoke.worker.checks import isolation

    return isolation.prove(bed)


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield what keeps documents apart: tensors first, then the packing's style, then another implementation."""
    yield from choices.tensors(plan)
    if plan.positions in ("reset", "reset_3d"):
        yield choices.multimodal(plan)
    flash = plan.attn_implementation.startswith("flash_attention")
    if flash and plan.batch > 1:
        text = "per_device_train_batch_size = 1  # one packed row; more of them by gradient accumulation"
        one = replace(plan, batch=1, accumulation=plan.accumulation * plan.batch)
        yield Change("one packed row to a batch", "setting", text, one)
    for packing in ("cu_seqlens", "mask_4d") if flash else ("mask_4d",):
        if plan.packing != packing:
            yield choices.packed(replace(plan, packing=packing, positions="reset", use_cache=False))
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            clean = replace(plan, packing="position_ids", positions="reset", use_cache=False)
            yield choices.implementation(replace(clean, attn_implementation=name))
    yield choices.unpacked(plan)


PROVING = Proving(
    name="isolation",
    title="packed documents do not see each other",
    code="ATN420",
    order=20,
    applies=lambda plan: "" if plan.packed else "documents are not packed",
    prove=prove,
    message=lambda proof: f"packed documents see each other: {deciding_reason(proof)}",
    changes=changes,
)
