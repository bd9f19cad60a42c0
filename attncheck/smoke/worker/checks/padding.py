"""Checks whether batches padded on either side equal the unpadded documents, forward and backward.

A row of padding only is included. A causal model does not show a missing mask with right padding, because nothing
attends to the right. Left padding shows it, so both are measured; a side that the plan does not use is a warning, not a
violation.
"""

from dataclasses import replace

import torch

from attncheck.attention.device import describe_exception
from attncheck.core.plan import SIDES, Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import controls
from attncheck.smoke.worker.checks.implementation import find_fault
from attncheck.smoke.worker.controls import Comparison
from attncheck.smoke.worker.data.packing import pad_documents
from attncheck.smoke.worker.testbed import UNSUPPORTED_ERRORS, Testbed


def run(testbed: Testbed) -> CheckResult:
    """Check both sides, in float32 if the implementation runs in it, and in the plan's precision."""
    if testbed.random_always:
        return CheckResult("padding", "skipped", testbed.random_always)
    measures: list[Measure] = []
    violations: list[str] = []
    warnings: list[str] = [*controls.mode_warnings(testbed)]
    notes: list[str] = []
    has_unused_fault = False
    for side in SIDES:
        is_used = not testbed.plan.packed and side == testbed.plan.padding_side
        for plan in dict.fromkeys((replace(testbed.plan, precision="fp32"), testbed.plan)):
            try:
                comparison = _compare_side(testbed, plan, side)
                nan_violation = _find_nan_from_empty_row(testbed, plan, side)
            except UNSUPPORTED_ERRORS as error:
                if plan.precision == "fp32" and testbed.plan.precision != "fp32":
                    notes.append(f"{side}, not in float32: {describe_exception(error)}")
                elif is_used:
                    violations.append(f"{side} padding raises {describe_exception(error)}")
                else:
                    warnings.append(f"{side} padding, which this plan does not use, raises {describe_exception(error)}")
                continue
            warnings += comparison.warnings
            notes += comparison.notes
            beyond_limit = [m for m in comparison.measures if m.beyond]
            if is_used or not beyond_limit:
                measures += comparison.measures
                violations += [nan_violation] if nan_violation and is_used else []
                warnings += [nan_violation] if nan_violation and not is_used else []
            else:
                has_unused_fault = True
                first = beyond_limit[0]
                description = f"{first.what} off by {first.value:.2g} (limit {first.limit:.2g})"
                warnings.append(f"not used by this plan: {description}")
    is_wrong = has_unused_fault or violations or any(measure.beyond for measure in measures)
    fault = find_fault(testbed) if is_wrong else ""
    if fault:
        return CheckResult("padding", "skipped", fault, tuple(measures), notes=tuple(dict.fromkeys(notes)))
    return CheckResult(
        "padding",
        measures=tuple(measures),
        violations=tuple(dict.fromkeys(violations)),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _compare_side(testbed: Testbed, plan: Plan, side: str) -> Comparison:
    backward = not testbed.no_backward_reason
    batch = pad_documents(testbed.documents, side, testbed.device, testbed.source.pad_token_id, plan)
    order = range(len(testbed.documents))
    layout = controls.batch_layout(testbed, testbed.build_model(plan), batch, order, plan, backward)
    reference = testbed.implementation_reference if plan.precision == "fp32" else testbed.reference
    title = f"{plan.precision}, {side} padding"
    return controls.compare(testbed, layout, plan, reference, testbed.error_limits(plan.precision), title)


def _find_nan_from_empty_row(testbed: Testbed, plan: Plan, side: str) -> str:
    """Return the NaN that a padding-only row causes in other rows or in gradients; "" if there is none."""
    batch = pad_documents(
        [*testbed.documents, torch.zeros(0, dtype=torch.long)], side, testbed.device, testbed.source.pad_token_id, plan
    )
    model = testbed.build_model(plan)
    result = testbed.run_batch(model, batch, plan, backward=not testbed.no_backward_reason)
    if not all(bool(torch.isfinite(x).all()) for x in result.logits):
        return f"a padding-only row ({side}, {plan.precision}) gives NaN in the logits of real documents"
    if not all(bool(torch.isfinite(x).all()) for x in result.gradients.values()):
        return f"a padding-only row ({side}, {plan.precision}) gives NaN in gradients"
    return ""
