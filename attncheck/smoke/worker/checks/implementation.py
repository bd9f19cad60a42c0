"""Does the model compute under the plan's implementation what it computes with eager attention? One document at a time.

This tells a soft-cap, window, scale or sink that an implementation drops from what packing does wrong. In float32 to
rounding where the implementation runs in it; in the plan's precision within twice what eager attention is off in it.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.attention.device import message
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    if bed.plan.attn_implementation == "eager":
        return CheckResult("implementation", notes=("eager attention is what others are compared with",))
    measures: list[Measure] = []
    notes: list[str] = []
    for plan in dict.fromkeys((replace(bed.plan, precision="fp32"), bed.plan)):
        try:
            measures += _against_eager(bed, plan)
        except beds.REFUSALS as error:
            if plan is bed.plan and not measures:
                raise
            notes.append(f"{plan.precision}: {message(error)}")
    return CheckResult("implementation", measures=tuple(measures), notes=tuple(notes))


def _against_eager(bed: Bed, plan: Plan) -> list[Measure]:
    found = bed.alone(bed.model(plan), bed.documents, plan)
    logits, gradients = bed.exactness
    if plan.precision != "fp32":
        eager = bed.alone(bed.model(plan, "eager"), bed.documents, plan)
        logits = beds.FLOORS * beds.relative(eager.logits, bed.exact.logits)
        gradients = beds.FLOORS * beds.apart(eager.gradients, bed.exact.gradients)
    where = f"worst in {beds.worst(found.gradients, bed.exact.gradients)}"
    return [
        Measure(f"logits, {plan.precision}", beds.relative(found.logits, bed.exact.logits), logits),
        Measure(f"gradients, {plan.precision}", beds.apart(found.gradients, bed.exact.gradients), gradients, where),
    ]
