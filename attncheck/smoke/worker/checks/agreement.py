"""A model that something was switched on in, against the same model without: in float32, and as the plan computes.

Both see the same rows, so that nothing but the switch can differ. In float32, under transformers' eager attention
(flash-attn has no float32), they may differ by what reordered sums cost, `bed.EXACT`. In the plan's precision both are
a rounding away from the exact result, hence at most twice that from each other; `bed.limits()` allows four times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from attncheck.attention.device import message
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.core.results.verdicts import HUGE
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.testbed import Bed, Result


def plans(bed: Bed) -> tuple[Plan, ...]:
    """Return the plan in float32 with eager attention, and the plan as it is, both without what makes parts faster.

    Where the plan's implementation has no backward here, the first one alone.
    """
    own = bed.plan.bare()
    exact = replace(own, precision="fp32", attn_implementation="eager")
    return (exact,) if bed.untrainable else tuple(dict.fromkeys((exact, own)))


def left_out(bed: Bed) -> tuple[str, ...]:
    """Return a note where the plan could not be run as it is."""
    return (f"in float32 with eager attention only: {bed.untrainable}",) if bed.untrainable else ()


def _of_two(limits: tuple[float, float]) -> tuple[float, float]:
    """Return limits for two runs that round each in its own way, neither of which is exact."""
    return 2 * limits[0], 2 * limits[1]


def compared(bed: Bed, switched: Mapping[str, Callable[[Plan], Result]]) -> Iterator[Measure]:
    """Yield how far what each of `switched`, by what it is called, returns for a plan is from the plan without it."""
    for plan in plans(bed):
        off = bed.run(bed.model(plan), bed.batch(bed.rows(), plan), plan)
        limits = bed.exactness if plan.precision == "fp32" else _of_two(bed.limits())
        for words, run in switched.items():
            yield from against(run(plan), off, limits, plan.precision + words)


def against(on: Result, off: Result, limits: tuple[float, float], words: str) -> Iterator[Measure]:
    """Yield how far logits, loss and gradients are apart. The loss is held to what the logits are, relative to it."""
    logits, gradients = limits
    if on.logits:
        yield Measure(f"logits, {words}", beds.relative(on.logits, off.logits), logits)
    error = abs(on.loss - off.loss) / max(abs(off.loss), beds.TINY)
    yield Measure(f"loss, {words}", error if error < HUGE else HUGE, logits)
    where = f"worst in {beds.worst(on.gradients, off.gradients)}"
    yield Measure(f"gradients, {words}", beds.apart(on.gradients, off.gradients), gradients, where)


def failed(question: str, error: BaseException) -> CheckResult:
    """Return a proof that an exception put an end to. Raises it again where memory ran out."""
    if "OutOfMemory" in type(error).__name__:
        raise error
    return CheckResult(question, "raised", message(error))
