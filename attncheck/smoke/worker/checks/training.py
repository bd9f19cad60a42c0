"""Does training learn, and only what can be learnt? The first gradient against float32, then a training run.

The gradient of the first step is the sensitive test: a loss curve shows half of the faults at best (numerics §5).
The loss must fall below the bound, and must not fall below the entropy of the language: a model that does looks ahead.
"""

from __future__ import annotations

import math

from attncheck.core.results.smoke import CheckResult, Measure, Step
from attncheck.smoke.worker import trainer
from attncheck.smoke.worker.testbed import (
    ROUNDING_MULTIPLE,
    TINY,
    Testbed,
    gradient_error,
    gradient_norm,
    worst_parameter,
)

MAX_NORM_RATIO = 1.01  # of the gradient to the reference: a constant factor, which AdamW hides, is wrong above it


def run(testbed: Testbed) -> CheckResult:
    """Compare the first step's gradients with the reference, then train and judge the losses."""
    if testbed.no_backward_reason:
        return CheckResult("training", "refused", testbed.no_backward_reason)
    measures = measure_first_step(testbed)
    steps: list[Step] = []

    def send_step(number: int, step: Step) -> None:
        testbed.send({"step": number, "loss": round(step.loss, 4)})

    for step in trainer.train(testbed, send_step):
        steps.append(step)
    bounds = trainer.loss_bounds(testbed, [step.loss for step in steps])
    return CheckResult(
        "training",
        measures=tuple(measures),
        violations=tuple(find_violations(testbed, steps)),
        notes=(*testbed.notes, *note_too_few_steps(testbed, steps)),
        steps=tuple(steps),
        floor=bounds.floor,
        bound=bounds.bound,
    )


def find_violations(testbed: Testbed, steps: list[Step]) -> list[str]:
    """Return what is wrong with the losses and gradient norms of a run."""
    losses = [step.loss for step in steps]
    first_not_finite = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if first_not_finite is not None:
        kind = "NaN" if math.isnan(losses[first_not_finite]) else "infinite"
        return [f"the loss is {kind} at step {first_not_finite + 1}"]
    first_bad_norm = next((index for index, step in enumerate(steps) if not math.isfinite(step.grad_norm)), None)
    if first_bad_norm is not None:
        return [f"the gradients' norm is not finite at step {first_bad_norm + 1}"]
    last, bounds = trainer.mean_last_loss(losses), trainer.loss_bounds(testbed, losses)
    if last < bounds.floor - trainer.FLOOR_MARGIN:
        return [f"the loss falls to {last:.3f}, below the entropy of {bounds.floor:.3f}: something looks ahead"]
    if trainer.is_above_bound(testbed, losses) and len(losses) >= trainer.MIN_CONCLUSIVE_STEPS:
        return [f"the loss is {last:.2f} after {len(losses)} steps; it must fall below {bounds.bound:.2f}"]
    return []


def note_too_few_steps(testbed: Testbed, steps: list[Step]) -> tuple[str, ...]:
    """Return a note where the loss is above the bound after too few steps to judge that."""
    minimum = trainer.MIN_CONCLUSIVE_STEPS
    if len(steps) < minimum and trainer.is_above_bound(testbed, [step.loss for step in steps]):
        return (f"{len(steps)} steps are too few to tell whether it learns; take {minimum}",)
    return ()


def measure_first_step(testbed: Testbed) -> list[Measure]:
    """Return how far the first step's gradients are from those of its documents one at a time in float32."""
    actual, expected = trainer.first_step_gradients(testbed)
    is_fp32 = testbed.plan.precision == "fp32"
    limit = testbed.fp32_limits[1] if is_fp32 else ROUNDING_MULTIPLE * _initial_rounding_error(testbed)
    error, ratio = gradient_error(actual, expected), gradient_norm(actual) / max(gradient_norm(expected), TINY)
    where = f"worst in {worst_parameter(actual, expected)}"
    ratio_limit = max(MAX_NORM_RATIO - 1.0, limit)
    return [
        Measure(f"gradients of the first step, {testbed.plan.precision}", error, limit, where),
        Measure("norm of the gradients of the first step, ratio less 1", abs(ratio - 1.0), ratio_limit),
    ]


def _initial_rounding_error(testbed: Testbed) -> float:
    """Return the relative error of gradients that rounding to the plan's precision makes at the initial weights."""
    documents = testbed.training_source(testbed.plan.seed + 2).take_documents(testbed.plan.max_length)
    fp32_plan = testbed.plan.without_optimizations("fp32")
    bare_plan = testbed.plan.without_optimizations()
    exact, rounded = (
        testbed.run_unpacked(testbed.build_model(plan, "eager", sharp_weights=False), documents, plan)
        for plan in (fp32_plan, bare_plan)
    )
    return gradient_error(rounded.gradients, exact.gradients)
