"""A training run learns what can be learnt, and no more."""

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
    from attncheck.smoke.worker.checks import training

    return training.prove(bed)


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield what may make it learn: clean tensors, no packing, other arithmetic, other implementations."""
    yield from choices.tensors(plan)
    if plan.precision == "fp16":
        yield Change("bfloat16", "setting", "dtype=torch.bfloat16", replace(plan, precision="bf16"))
    if plan.packed:
        yield choices.unpacked(plan)
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            yield choices.implementation(replace(plan, attn_implementation=name))


PROVING = Proving(
    name="training",
    title="training learns what can be learnt",
    code="ATN430",
    order=40,
    applies=lambda plan: "",
    prove=prove,
    message=lambda proof: f"training goes wrong: {deciding_reason(proof)}",
    changes=changes,
)
