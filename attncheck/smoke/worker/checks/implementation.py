"""Does the model compute under the plan's implementation what it computes with eager attention? One document at a time.

This separates a soft-cap, window, scale or sink that an implementation drops from errors of packing. In float32 to
rounding where the implementation runs in it; in the plan's precision within twice the error of eager attention in it.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.testbed import (
    ROUNDING_MULTIPLE,
    UNSUPPORTED_ERRORS,
    Testbed,
    gradient_error,
    relative_error,
    worst_parameter,
)


def run(testbed: Testbed) -> CheckResult:
    """Compare the plan's implementation with eager attention, one document at a time."""
    if testbed.plan.attn_implementation == "eager":
        return CheckResult("implementation", notes=("eager attention is what others are compared with",))
    measures: list[Measure] = []
    notes: list[str] = []
    for plan in dict.fromkeys((replace(testbed.plan, precision="fp32"), testbed.plan)):
        try:
            measures += _compare_with_eager(testbed, plan)
        except UNSUPPORTED_ERRORS as error:
            if plan is testbed.plan and not measures:
                raise
            notes.append(f"{plan.precision}: {describe_exception(error)}")
    return CheckResult("implementation", measures=tuple(measures), notes=tuple(notes))


def _compare_with_eager(testbed: Testbed, plan: Plan) -> list[Measure]:
    actual = testbed.run_unpacked(testbed.build_model(plan), testbed.documents, plan)
    logits, gradients = testbed.fp32_limits
    if plan.precision != "fp32":
        eager = testbed.run_unpacked(testbed.build_model(plan, "eager"), testbed.documents, plan)
        logits = ROUNDING_MULTIPLE * relative_error(eager.logits, testbed.reference.logits)
        gradients = ROUNDING_MULTIPLE * gradient_error(eager.gradients, testbed.reference.gradients)
    where = f"worst in {worst_parameter(actual.gradients, testbed.reference.gradients)}"
    return [
        Measure(f"logits, {plan.precision}", relative_error(actual.logits, testbed.reference.logits), logits),
        Measure(
            f"gradients, {plan.precision}",
            gradient_error(actual.gradients, testbed.reference.gradients),
            gradients,
            where,
        ),
    ]
