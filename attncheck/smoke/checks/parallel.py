"""Checks that a row split across ranks trains as on one device."""

import re
from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import RING_NAMES
from attncheck.core.results.hf_adapter import HOOKED_IMPLEMENTATION
from attncheck.core.verdicts import UNMEASURED
from attncheck.doctor.knowledge import ring_flash_attn as knowledge
from attncheck.smoke import plan_changes
from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, Testbed, deciding_reason

MISSING_SYMBOL = re.compile(r"cannot import name '(\w+)' from 'transformers\.modeling_flash_attention_utils'")
STRIDE_OPTION = "heads_k_stride"
NEVER_CALLED = "is never called"


def skip_in_worker(testbed: Testbed) -> CheckResult:
    """Return a skip: a single worker cannot run this check, `attncheck.smoke.over_ranks` does."""
    return CheckResult("parallel", "skipped", "it runs across ranks")


def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield the changes that the result requires, one by one, then together, and finally a plan without a ring."""
    problems = " ".join((result.reason, *result.violations))
    needed = [change for change in _needed_changes(plan, problems) if change.plan != plan]
    yield from needed
    combined = _combine_changes(plan, needed)
    if combined is not None:
        yield combined
    text = "--ds.ring_attn_size 1  # OpenRLHF; in other frameworks, the sequence-parallel size"
    yield Change("no ring", "setting", text, replace(plan, ring_size=1))


def _needed_changes(plan: Plan, problems: str) -> Iterator[Change]:
    missing = MISSING_SYMBOL.search(problems)
    if missing and RING_NAMES not in plan.shims:
        shimmed = replace(plan, shims=(*plan.shims, RING_NAMES))
        yield Change(
            "restore the names that ring-flash-attn imports from transformers", "edit", format_shim(missing[1]), shimmed
        )
    has_not_run = bool(missing)  # the ring has not run yet, so other missing parts are still unknown
    if (
        (NEVER_CALLED in problems or has_not_run)
        and plan.scheme == "llama3"
        and plan.attn_implementation != HOOKED_IMPLEMENTATION
    ):
        yield plan_changes.propose_implementation(replace(plan, attn_implementation=HOOKED_IMPLEMENTATION))
    if (STRIDE_OPTION in problems or has_not_run) and plan.heads_k_stride != 1:
        yield Change("a head stride of 1", "setting", "--ds.ring_attn_head_stride 1", replace(plan, heads_k_stride=1))


def _combine_changes(plan: Plan, needed: list[Change]) -> Change | None:
    """Return all changes as one, None if there are fewer than two."""
    if len(needed) < 2:
        return None
    combined = plan
    for change in needed:
        combined = replace(combined, **{n: v for n, v in vars(change.plan).items() if v != getattr(plan, n)})
    title = ", ".join(change.title for change in needed)
    return Change(title, "edit", "\n".join(change.text for change in needed), combined)


def format_shim(name: str) -> str:
    """Return the lines of Python that restore a name in the module from which ring-flash-attn imports it."""
    if name == knowledge.MOVED_SYMBOL:
        return knowledge.SHIM_CODE
    return (
        "import transformers.modeling_flash_attention_utils as flash\n"
        f"flash.{name} = True  # before `import ring_flash_attn`"
    )


def describe_failure(result: CheckResult) -> str:
    """Return the failure in one line."""
    if result.outcome in UNMEASURED:
        return f"training across ranks ends with an error: {deciding_reason(result)}"
    return f"training across ranks differs from training on one device: {deciding_reason(result)}"


CHECK = SmokeCheck(
    name="parallel",
    title="training across ranks gives the same results as on one",
    code="ATN540",
    order=80,
    applies=lambda plan: "" if plan.ring_size > 1 else "the plan has no ring",
    worker=skip_in_worker,
    message=describe_failure,
    changes=propose_changes,
    names_errors=True,
)
