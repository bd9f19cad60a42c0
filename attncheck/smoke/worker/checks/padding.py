"""Do padded batches equal the unpadded, on either side, forward and backward, and with a row of padding only?

Right padding cannot show a mask that is missing in a causal model: nothing looks to the right. Left padding can, so
both are measured; a side that the plan does not use is a reservation, not a violation.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.device import message
from attncheck.core.plan import SIDES, Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.data.packing import padded
from attncheck.smoke.worker.testbed import Bed


def prove(bed: Bed) -> CheckResult:
    """Return the proof for both sides, in the plan's precision and, where the implementation runs in it, float32."""
    measures: list[Measure] = []
    violations: list[str] = []
    reservations: list[str] = []
    notes: list[str] = []
    for side in SIDES:
        rests = not bed.plan.packed and side == bed.plan.padding_side
        for plan in dict.fromkeys((replace(bed.plan, precision="fp32"), bed.plan)):
            try:
                found = _measured(bed, plan, side)
                hollow = _hollow(bed, plan, side)
            except beds.REFUSALS as error:
                if plan.precision == "fp32" and bed.plan.precision != "fp32":
                    notes.append(f"{side}, not in float32: {message(error)}")
                elif rests:
                    violations.append(f"{side} padding raises {message(error)}")
                else:
                    reservations.append(f"{side} padding, which this plan does not use, raises {message(error)}")
                continue
            broken = [m for m in found if m.beyond]
            if rests or not broken:
                measures += found
                violations += [hollow] if hollow and rests else []
                reservations += [hollow] if hollow and not rests else []
            else:
                first = broken[0]
                told = f"{first.what} off by {first.value:.2g} (limit {first.limit:.2g})"
                reservations.append(f"not used by this plan: {told}")
    return CheckResult(
        "padding",
        measures=tuple(measures),
        violations=tuple(dict.fromkeys(violations)),
        reservations=tuple(dict.fromkeys(reservations)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measured(bed: Bed, plan: Plan, side: str) -> list[Measure]:
    backward = not bed.untrainable
    batch = padded(bed.documents, side, bed.device, bed.source.pad, plan)
    found = bed.run(bed.model(plan), batch, plan, backward)
    logits, gradients = bed.limits(plan.precision)
    reference = bed.own if plan.precision == "fp32" else bed.exact
    title = f"{side} padding, {plan.precision}"
    measures = [Measure(f"{title}, logits", beds.relative(found.logits, reference.logits), logits)]
    if backward:
        error = beds.apart(found.gradients, reference.gradients)
        measures.append(Measure(f"{title}, gradients", error, gradients))
    return measures


def _hollow(bed: Bed, plan: Plan, side: str) -> str:
    """Return what goes wrong where a row of the batch is padding only; "" where nothing does."""
    batch = padded([*bed.documents, _nothing()], side, bed.device, bed.source.pad, plan)
    model = bed.model(plan)
    found = bed.run(model, batch, plan, backward=not bed.untrainable)
    if not all(bool(torch.isfinite(x).all()) for x in found.logits):
        return f"a row of padding only ({side}, {plan.precision}) makes NaN in the logits of real documents"
    if not all(bool(torch.isfinite(x).all()) for x in found.gradients.values()):
        return f"a row of padding only ({side}, {plan.precision}) makes NaN in gradients"
    return ""


def _nothing() -> Tensor:
    return torch.zeros(0, dtype=torch.long)
