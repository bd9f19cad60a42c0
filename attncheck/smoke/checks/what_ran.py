"""Checks that the requested attention runs in every attention layer."""

import re
from collections.abc import Iterator
from dataclasses import replace

from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield other implementations: one that runs under its own name is reliable.

    If a flash kernel raises, the documents' lengths as numbers come first. transformers 5.17.0 passes the largest
    position as a tensor (modeling_flash_attention_utils.py `prepare_fa_kwargs_from_position_ids`), for which
    flash-attn-4 4.0.0b36 raises ValueError on Hopper (flash_attn/cute/interface.py, `host_max_seqlen_q`).
    """
    yield from plan_changes.propose_without_cudnn(plan, result)
    is_imported = result.outcome == "raised" and not re.match(r"(Import|ModuleNotFound)Error", result.reason)
    if is_imported and plan.attn_implementation.startswith("flash_attention") and plan.packing == "position_ids":
        yield plan_changes.propose_packing(replace(plan, packing="cu_seqlens", positions="reset", use_cache=False))
    yield from plan_changes.propose_implementations(plan)


CHECK = SmokeCheck(
    name="what_ran",
    title="the requested attention is the one used",
    code="ATN340",
    order=10,
    applies=lambda plan: "",
    worker="attncheck.smoke.worker.checks.what_ran:run",
    message=lambda result: f"a different attention from the requested one is used: {deciding_reason(result)}",
    changes=propose_changes,
)
