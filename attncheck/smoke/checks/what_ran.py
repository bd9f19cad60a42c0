"""What was asked for is what runs, in every attention layer."""

import re
from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.smoke.checks import SmokeCheck
from attncheck.smoke.plan_changes import propose_implementation, propose_packing, propose_without_cudnn


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield other implementations: one that runs under its own name can be relied on.

    Before them, where a flash kernel raises, the lengths of documents given as numbers. transformers 5.17.0 makes of
    position_ids a tensor of the greatest one (modeling_flash_attention_utils.py `prepare_fa_kwargs_from_position_ids`),
    and flash-attn-4 4.0.0b36 raises ValueError for it on Hopper (flash_attn/cute/interface.py, `host_max_seqlen_q`).
    """
    yield from propose_without_cudnn(plan, result)
    is_imported = result.outcome == "raised" and not re.match(r"(Import|ModuleNotFound)Error", result.reason)
    if is_imported and plan.attn_implementation.startswith("flash_attention") and plan.packing == "position_ids":
        yield propose_packing(replace(plan, packing="cu_seqlens", positions="reset", use_cache=False))
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
