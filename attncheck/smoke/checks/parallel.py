"""Parallel equals single: a row cut over ranks trains as one device would train it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncheck.core.plan import RING_NAMES, Change, Plan
from attncheck.core.results.hf_adapter import HOOKED
from attncheck.core.results.smoke import CheckResult, deciding_reason
from attncheck.doctor.knowledge import ring_flash_attn as knowledge
from attncheck.smoke import plan_changes as choices
from attncheck.smoke.checks import Proving

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed

MISSING = re.compile(r"cannot import name '(\w+)' from 'transformers\.modeling_flash_attention_utils'")
STRIDE = "heads_k_stride"
SILENT = "is never entered"


def prove(bed: Bed) -> CheckResult:
    """Return that no single worker can answer: `attncheck.smoke.over_ranks` does."""
    return CheckResult("parallel", "skipped", "it runs over ranks")


def changes(plan: Plan, proof: CheckResult) -> Iterator[Change]:
    """Yield what the proof asks for, alone and then with all else that the ring needs; the ring off last."""
    told = " ".join((proof.reason, *proof.violations))
    needed = [change for change in _needed(plan, told) if change.plan != plan]
    yield from needed
    whole = _together(plan, needed)
    if whole is not None:
        yield whole
    text = "--ds.ring_attn_size 1  # OpenRLHF; elsewhere the size of the sequence's parallelism"
    yield Change("no ring", "setting", text, replace(plan, ring_size=1))


def _needed(plan: Plan, told: str) -> Iterator[Change]:
    missing = MISSING.search(told)
    if missing and RING_NAMES not in plan.shims:
        plan_with = replace(plan, shims=(*plan.shims, RING_NAMES))
        yield Change("the names that ring-flash-attn misses in transformers", "edit", shim(missing[1]), plan_with)
    unknown = bool(missing)  # the ring has not run yet: what else it lacks would only show then
    if (SILENT in told or unknown) and plan.scheme == "llama3" and plan.attn_implementation != HOOKED:
        yield choices.implementation(replace(plan, attn_implementation=HOOKED))
    if (STRIDE in told or unknown) and plan.heads_k_stride != 1:
        yield Change("a head stride of 1", "setting", "--ds.ring_attn_head_stride 1", replace(plan, heads_k_stride=1))


def _together(plan: Plan, needed: list[Change]) -> Change | None:
    """Return all changes as one, None where that is no other than one of them."""
    if len(needed) < 2:
        return None
    whole = plan
    for change in needed:
        whole = replace(whole, **{n: v for n, v in vars(change.plan).items() if v != getattr(plan, n)})
    title = ", ".join(change.title for change in needed)
    return Change(title, "edit", "\n".join(change.text for change in needed), whole)


def shim(name: str) -> str:
    """Return the lines that put a name back where ring-flash-attn looks for it."""
    if name == knowledge.SYMBOL:
        return knowledge.SHIM
    return (
        "import transformers.modeling_flash_attention_utils as flash\n"
        f"flash.{name} = True  # before `import ring_flash_attn`"
    )


PROVING = Proving(
    name="parallel",
    title="training over ranks equals training on one",
    code="ATN540",
    order=80,
    applies=lambda plan: "" if plan.ring_size > 1 else "there is no ring",
    prove=prove,
    message=lambda proof: f"training over ranks is not what one device trains: {deciding_reason(proof)}",
    changes=changes,
)
