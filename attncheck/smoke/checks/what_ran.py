"""What was asked for is what runs, in every attention layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck
from attncheck.smoke.plan_changes import propose_implementation, propose_without_cudnn


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield other implementations: one that runs under its own name can be relied on."""
    yield from propose_without_cudnn(plan, result)
    for name in ("flash_attention_2", "sdpa", "eager"):
        if name != plan.attn_implementation:
            yield propose_implementation(replace(plan, attn_implementation=name))


CHECK = SmokeCheck(
    name="what_ran",
    title="what was asked for is what runs",
    code="ATN340",
    order=10,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.what_ran:run",
    message=lambda result: f"another attention runs than the one asked for: {deciding_reason(result)}",
    changes=propose_changes,
)
