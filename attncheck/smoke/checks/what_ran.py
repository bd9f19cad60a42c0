"""What was asked for is what runs, in every attention layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import Proving
from attncheck.smoke.plan_changes import implementation

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    from attncheck.smoke.worker.checks import what_ran

    return what_ran.prove(bed)


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield other implementations: what runs under its own name can be relied on."""
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            yield implementation(replace(plan, attn_implementation=name))


PROVING = Proving(
    name="what_ran",
    title="what was asked for is what runs",
    code="ATN340",
    order=10,
    applies=lambda plan: "",
    prove=prove,
    message=lambda proof: f"another attention runs than the one asked for: {deciding_reason(proof)}",
    changes=changes,
)
