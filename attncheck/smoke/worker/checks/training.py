"""Does it learn, and only what can be learnt? The first gradient against plain arithmetic, then a training run.

The gradient of the first step is the sharp instrument: a loss curve shows half of the faults at best (numerics §5).
The loss must fall below the bound, and must not fall below the entropy of the language: what does looks ahead.
"""

from __future__ import annotations

import math

from attncheck.core.results.smoke import CheckResult, Measure, Step
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker import trainer
from attncheck.smoke.worker.testbed import Bed

TWICE = 1.01  # a constant factor in the gradient, which AdamW hides, is wrong from here on


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    if bed.untrainable:
        return CheckResult("training", "refused", bed.untrainable)
    measures = first_step(bed)
    steps: list[Step] = []

    def tell(number: int, step: Step) -> None:
        bed.say({"step": number, "loss": round(step.loss, 4)})

    for step in trainer.run(bed, tell):
        steps.append(step)
    goal = trainer.goal(bed, [step.loss for step in steps])
    return CheckResult(
        "training",
        measures=tuple(measures),
        violations=tuple(wrong(bed, steps)),
        notes=(*bed.notes, *few(bed, steps)),
        steps=tuple(steps),
        floor=goal.floor,
        bound=goal.bound,
    )


def wrong(bed: Bed, steps: list[Step]) -> list[str]:
    """Return what the losses of a run show to be wrong."""
    losses = [step.loss for step in steps]
    bad = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        return [f"the loss is {'NaN' if math.isnan(losses[bad]) else 'infinite'} at step {bad + 1}"]
    gradients = next((index for index, step in enumerate(steps) if not math.isfinite(step.grad_norm)), None)
    if gradients is not None:
        return [f"the gradients' norm is not finite at step {gradients + 1}"]
    last, goal = trainer.mean_of_last(losses), trainer.goal(bed, losses)
    if last < goal.floor - trainer.AHEAD:
        return [f"the loss falls to {last:.3f}, below the entropy of {goal.floor:.3f}: something looks ahead"]
    if trainer.late(bed, losses) and len(losses) >= trainer.ENOUGH:
        return [f"the loss is {last:.2f} after {len(losses)} steps; it must fall below {goal.bound:.2f}"]
    return []


def few(bed: Bed, steps: list[Step]) -> tuple[str, ...]:
    """Return that a run is too short to say whether it learns, where it is and has not."""
    short = len(steps) < trainer.ENOUGH and trainer.late(bed, [step.loss for step in steps])
    return (f"{len(steps)} steps are too few to tell whether it learns; take {trainer.ENOUGH}",) if short else ()


def first_step(bed: Bed) -> list[Measure]:
    """Return how far the first step's gradients are from those of its documents one at a time in float32."""
    got, wanted = trainer.first_gradient(bed)
    limit = bed.exactness[1] if bed.plan.precision == "fp32" else beds.FLOORS * _rounding(bed)
    error, ratio = beds.apart(got, wanted), beds.norm(got) / max(beds.norm(wanted), beds.TINY)
    where = f"worst in {beds.worst(got, wanted)}"
    size = max(TWICE - 1.0, limit)
    return [
        Measure(f"gradients of the first step, {bed.plan.precision}", error, limit, where),
        Measure("norm of the gradients of the first step, ratio less 1", abs(ratio - 1.0), size),
    ]


def _rounding(bed: Bed) -> float:
    """Return the relative error of gradients that the plan's precision makes by itself at the first weights."""
    documents = bed.texts(bed.plan.seed + 2).documents(bed.plan.max_length)
    plain = bed.plan.bare("fp32")
    exact = bed.alone(bed.model(plain, "eager", sharp=False), documents, plain).gradients
    own = bed.plan.bare()
    rounded = bed.alone(bed.model(own, "eager", sharp=False), documents, own).gradients
    return beds.apart(rounded, exact)
