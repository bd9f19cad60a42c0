"""Checks that packed documents do not attend to each other."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield changes that isolate documents: other tensors first, then another packing, then another implementation."""
    yield from plan_changes.propose_without_cudnn(plan, result)
    yield from plan_changes.propose_collator_changes(plan)
    if plan.positions in ("reset", "reset_3d"):
        yield plan_changes.propose_multimodal_positions(plan)
    is_flash = plan.attn_implementation.startswith("flash_attention")
    if is_flash and plan.batch > 1:
        text = "per_device_train_batch_size = 1  # one packed row; accumulate gradients for more"
        single_row = replace(plan, batch=1, accumulation=plan.accumulation * plan.batch)
        yield Change("use one packed row per batch", "setting", text, single_row)
    for packing in ("cu_seqlens", "mask_4d") if is_flash else ("mask_4d",):
        if plan.packing != packing:
            yield plan_changes.propose_packing(replace(plan, packing=packing, positions="reset", use_cache=False))
    yield from plan_changes.propose_implementations(
        replace(plan, packing="position_ids", positions="reset", use_cache=False)
    )
    yield plan_changes.propose_no_packing(plan)


CHECK = SmokeCheck(
    name="isolation",
    title="packed documents do not attend to each other",
    code="ATN420",
    order=20,
    applies=lambda plan: "" if plan.packed else "documents are not packed",
    worker="attncheck.smoke.worker.checks.isolation:run",
    message=lambda result: f"packed documents attend to each other: {deciding_reason(result)}",
    changes=propose_changes,
)
