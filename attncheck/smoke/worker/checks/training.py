"""Checks whether training learns what can be learned, and no more, by the first gradient and a training run.

The gradient of the first step, compared with float32, is the sensitive test: a loss curve shows at most half of the
faults (numerics §5). The loss must fall below the bound, but not below the entropy of the language, which only a model
that looks ahead can do.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from attncheck.core.plan import Precision
from attncheck.core.results.smoke import CheckResult, Measure, Step
from attncheck.smoke.worker import controls, trainer
from attncheck.smoke.worker.controls import MAX_LOSS_ERROR, Comparison, count_rounding_flips
from attncheck.smoke.worker.testbed import (
    HALF_PRECISION_ONLY,
    ROUNDING_MULTIPLE,
    TINY,
    UNSUPPORTED_ERRORS,
    Gradients,
    ModelRun,
    Testbed,
    gradient_error,
    gradient_norm,
    worst_parameter,
)
from attncheck.smoke.worker.trainer import FirstStep

# ratio of the gradient's norm to the reference's: a larger constant factor, which AdamW hides, is wrong
MAX_NORM_RATIO = 1.01


def run(testbed: Testbed) -> CheckResult:
    """Compare the first step's gradients with the reference, then train and judge the losses."""
    if testbed.no_backward_reason:
        return CheckResult("training", "refused", testbed.no_backward_reason)
    first_step = Comparison(()) if testbed.random_always else measure_first_step(testbed)
    steps: list[Step] = []

    def send_step(number: int, step: Step) -> None:
        testbed.send({"step": number, "loss": round(step.loss, 4)})

    for step in trainer.train(testbed, send_step):
        steps.append(step)
    bounds = trainer.loss_bounds(testbed, [step.loss for step in steps])
    return CheckResult(
        "training",
        measures=first_step.measures,
        violations=(*first_step.warnings, *find_violations(testbed, steps)),
        warnings=controls.mode_warnings(testbed),
        notes=(*first_step.notes, *note_too_few_steps(testbed, steps)),
        steps=tuple(steps),
        floor=bounds.floor,
        bound=bounds.bound,
    )


def find_violations(testbed: Testbed, steps: list[Step]) -> list[str]:
    """Return the faults of the losses and gradient norms of a run."""
    losses = [step.loss for step in steps]
    first_not_finite = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if first_not_finite is not None:
        kind = "NaN" if math.isnan(losses[first_not_finite]) else "infinite"
        return [f"the loss is {kind} at step {first_not_finite + 1}{_explain_lost_epsilon(testbed, first_not_finite)}"]
    first_bad_norm = next((index for index, step in enumerate(steps) if not math.isfinite(step.grad_norm)), None)
    if first_bad_norm is not None:
        return [f"the gradients' norm is not finite at step {first_bad_norm + 1}"]
    last, bounds = trainer.mean_last_loss(losses), trainer.loss_bounds(testbed, losses)
    if last < bounds.floor - trainer.FLOOR_MARGIN:
        return [
            (
                f"the loss falls to {last:.3f}, below the entropy of {bounds.floor:.3f}: the model "
                "attends to future tokens"
            )
        ]
    if trainer.is_above_bound(testbed, losses) and len(losses) >= trainer.MIN_CONCLUSIVE_STEPS:
        return [f"the loss is {last:.2f} after {len(losses)} steps; it should fall below {bounds.bound:.2f}"]
    return []


def _explain_lost_epsilon(testbed: Testbed, step: int) -> str:
    """Return why an update of weights in float16 is not finite, "" if it has another cause."""
    if testbed.plan.precision != "fp16" or step == 0:
        return ""
    return ": weights are float16, in which AdamW's eps of 1e-8 is 0, and an update may divide by 0"


def note_too_few_steps(testbed: Testbed, steps: list[Step]) -> tuple[str, ...]:
    """Return a note if the loss is above the bound after too few steps to judge that."""
    minimum = trainer.MIN_CONCLUSIVE_STEPS
    if len(steps) < minimum and trainer.is_above_bound(testbed, [step.loss for step in steps]):
        return (f"{len(steps)} steps are too few to judge whether it learns; use {minimum}",)
    return ()


def measure_first_step(testbed: Testbed) -> Comparison:
    """Return how far the first step's gradients are from those of its documents one at a time in float32.

    If the loss's own gradient at the logits is wrong, a warning of the comparison names the loss. If rounding chooses
    other experts in these documents and a 16-bit gradient is beyond its limit, the same step in float32 is judged
    instead.
    """
    first_step = trainer.take_first_step(testbed)
    expected = _run_alone(testbed, first_step.documents, "fp32").gradients
    comparison = _compare_first_step(testbed, first_step, expected)
    if not comparison.beyond or first_step.loss_fault > MAX_LOSS_ERROR or testbed.plan.precision == "fp32":
        return comparison
    flips = count_rounding_flips(testbed, first_step.documents, sharp_weights=False)
    if not flips or not sum(flips):
        return comparison
    note = f"{testbed.plan.precision}: rounding selects different experts at {sum(flips)} of the first step's tokens"
    exact = _compare_in_float32(testbed, expected)
    return replace(exact, notes=(*exact.notes, f"{note}; it was judged in float32"))


def _compare_in_float32(testbed: Testbed, expected: Gradients) -> Comparison:
    """Return the comparison of the same first step in float32; with eager attention if the plan's cannot run in it."""
    plan = replace(testbed.plan, precision="fp32")
    takes_float32 = not HALF_PRECISION_ONLY.search(plan.attn_implementation)
    for name in dict.fromkeys((plan.attn_implementation, "eager") if takes_float32 else ("eager",)):
        exact_testbed = Testbed(testbed.source, replace(plan, attn_implementation=name), testbed.device)
        try:
            return _compare_first_step(exact_testbed, trainer.take_first_step(exact_testbed), expected)
        except UNSUPPORTED_ERRORS:
            continue
    return Comparison((), notes=("it cannot run in float32",))


def _compare_first_step(testbed: Testbed, first_step: FirstStep, expected: Gradients) -> Comparison:
    actual, precision = first_step.gradients, testbed.plan.precision
    if precision == "fp32":
        limit = testbed.fp32_limits[1]
    else:  # the effect of rounding on the documents that are judged
        rounded = _run_alone(testbed, first_step.documents, precision).gradients
        limit = ROUNDING_MULTIPLE * gradient_error(rounded, expected)
    error, ratio = gradient_error(actual, expected), gradient_norm(actual) / max(gradient_norm(expected), TINY)
    where = f"worst in {worst_parameter(actual, expected)}"
    ratio_limit = max(MAX_NORM_RATIO - 1.0, limit)
    measures = (
        Measure(f"gradients of the first step, {precision}", error, limit, where),
        Measure("norm of the gradients of the first step, ratio minus 1", abs(ratio - 1.0), ratio_limit),
    )
    comparison = Comparison(measures)
    if comparison.beyond and first_step.loss_fault > MAX_LOSS_ERROR:
        fault = (
            "the loss is wrong: in the first step its gradient at the logits is off by "
            f"{first_step.loss_fault:.2g}, because of its labels or its normalisation (norm of the "
            f"gradients: {ratio:.3g} times what it should be)"
        )
        return replace(comparison, warnings=(fault,))
    return comparison


def _run_alone(testbed: Testbed, documents: Sequence[Tensor], precision: Precision) -> ModelRun:
    """Run documents one at a time with eager attention in a precision, with the initial weights of the training."""
    plan = testbed.plan.without_optimizations(precision)
    return testbed.run_unpacked(testbed.build_model(plan, "eager", sharp_weights=False), documents, plan)
