"""Compares the model under the plan's implementation with eager attention, one document at a time.

This separates a soft-cap, window, scale or sink that an implementation drops from errors of packing. The limit in
float32, if the implementation supports it, is rounding. In the plan's precision it is twice the error of eager
attention.
"""

from dataclasses import replace

import torch

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure, deciding_reason, judge_result
from attncheck.smoke.worker import controls
from attncheck.smoke.worker.controls import Comparison
from attncheck.smoke.worker.testbed import (
    ROUNDING_MULTIPLE,
    UNSUPPORTED_ERRORS,
    Testbed,
    gradient_error,
    relative_error,
)

NOT_CAUSAL = "it is not causal"


def run(testbed: Testbed) -> CheckResult:
    """Compare the plan's implementation with eager attention, one document at a time; both must be causal."""
    if testbed.random_always:
        return CheckResult("implementation", "skipped", testbed.random_always)
    look_ahead = _measure_look_ahead(testbed, replace(testbed.plan, precision="fp32"), "eager")
    eager_fault = (
        [f"the model itself attends to future tokens, also with eager attention: {look_ahead}"] if look_ahead else []
    )
    if testbed.plan.attn_implementation == "eager":
        return CheckResult(
            "implementation",
            warnings=(*controls.mode_warnings(testbed), *eager_fault),
            notes=("eager attention is the reference",),
        )
    measures: list[Measure] = []
    notes: list[str] = []
    violations: list[str] = []
    warnings = [*controls.mode_warnings(testbed), *eager_fault]
    for plan in dict.fromkeys((replace(testbed.plan, precision="fp32"), testbed.plan)):
        try:
            comparison = _compare_with_eager(testbed, plan)
            look_ahead = "" if eager_fault or violations else _measure_look_ahead(testbed, plan)
        except UNSUPPORTED_ERRORS as error:
            if plan is testbed.plan and not measures:
                raise
            notes.append(f"{plan.precision}: {describe_exception(error)}")
            continue
        measures += comparison.measures
        warnings += comparison.warnings
        notes += comparison.notes
        violations += [f"{NOT_CAUSAL} under {_name(testbed)}: {look_ahead}"] if look_ahead else []
    return CheckResult(
        "implementation",
        measures=tuple(measures),
        violations=tuple(violations),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=tuple(dict.fromkeys(notes)),
    )


def find_fault(testbed: Testbed) -> str:
    """Return the fault of a single document under the plan's implementation, "" if there is none.

    Packing and padding cannot be the cause.
    """
    try:
        result = run(testbed)
    except UNSUPPORTED_ERRORS:
        return ""
    if judge_result(result) != "fail":
        return ""
    return f"even a single document is wrong under {_name(testbed)}: {deciding_reason(result)}"


def _name(testbed: Testbed) -> str:
    return testbed.plan.attn_implementation or "transformers' default attention"


def _measure_look_ahead(testbed: Testbed, plan: Plan, implementation: str | None = None) -> str:
    """Return how replacing a document's second half changes the logits of its first half, "" within rounding."""
    model = testbed.build_model(plan, implementation)
    index = max(range(len(testbed.documents)), key=lambda i: len(testbed.documents[i]))
    document, half = testbed.documents[index], len(testbed.documents[index]) // 2
    changed = torch.cat([document[:half], testbed.replacements[index][half:]])
    with torch.no_grad(), testbed.autocast_context(plan):
        before, after = (
            model(input_ids=d[None].to(testbed.device), use_cache=False).logits[0].float() for d in (document, changed)
        )
    error = relative_error([after[:half]], [before[:half]])
    if error <= testbed.error_limits(plan.precision)[0]:
        return ""
    return (
        f"replacing the tokens from {half} onwards changes the logits before them by {error:.2g}, in {plan.precision}"
    )


def _compare_with_eager(testbed: Testbed, plan: Plan) -> Comparison:
    logits, gradients = testbed.fp32_limits
    if plan.precision != "fp32":
        eager = testbed.run_unpacked(testbed.build_model(plan, "eager"), testbed.documents, plan)
        logits = ROUNDING_MULTIPLE * relative_error(eager.logits, testbed.reference.logits)
        gradients = ROUNDING_MULTIPLE * gradient_error(eager.gradients, testbed.reference.gradients)
    layout = controls.unpacked_layout(testbed, testbed.build_model(plan), testbed.documents, plan)
    return controls.compare(testbed, layout, plan, testbed.reference, (logits, gradients), plan.precision)
