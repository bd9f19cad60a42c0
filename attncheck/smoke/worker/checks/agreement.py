"""Compares a model that uses a feature (liger, checkpointing, compilation) with the same model without it.

Both get the same rows, so that only the feature can differ. In float32 with transformers' eager attention (flash-attn
does not support float32), they may differ by the error of reordered sums, `testbed.FP32_LIMIT`. In the plan's precision
both differ from the exact result by rounding, hence from each other by at most twice that. `Testbed.error_limits()`
already allows twice the rounding; twice those limits allow four times.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.core.verdicts import HUGE
from attncheck.smoke.worker.testbed import TINY, ModelRun, Testbed, gradient_error, relative_error, worst_parameter


def comparison_plans(testbed: Testbed) -> tuple[Plan, ...]:
    """Return the plan in float32 with eager attention, and in its own precision and implementation; both are `bare`.

    Only the first one is returned if the plan's implementation has no backward here.
    """
    bare_plan = testbed.plan.without_optimizations()
    fp32_plan = replace(bare_plan, precision="fp32", attn_implementation="eager")
    return (fp32_plan,) if testbed.no_backward_reason else tuple(dict.fromkeys((fp32_plan, bare_plan)))


def omission_notes(testbed: Testbed) -> tuple[str, ...]:
    """Return a note if the plan's own implementation, which has no backward here, was not compared."""
    reason = testbed.no_backward_reason
    return (f"in float32 with eager attention only: {reason}",) if reason else ()


def _double_limits(limits: tuple[float, float]) -> tuple[float, float]:
    """Return the limits for two runs that each round in their own way, neither of which is exact."""
    return 2 * limits[0], 2 * limits[1]


def measure_switches(testbed: Testbed, switches: Mapping[str, Callable[[Plan], ModelRun]]) -> Iterator[Measure]:
    """Yield the difference between a plan's run with each of `switches`, by its label, and the run without it."""
    for plan in comparison_plans(testbed):
        off = testbed.run_batch(testbed.build_model(plan), testbed.make_batch(testbed.make_rows(), plan), plan)
        limits = testbed.fp32_limits if plan.precision == "fp32" else _double_limits(testbed.error_limits())
        for label, run_switched in switches.items():
            yield from measure_difference(run_switched(plan), off, limits, plan.precision + label)


def measure_difference(on: ModelRun, off: ModelRun, limits: tuple[float, float], label: str) -> Iterator[Measure]:
    """Yield the differences of logits, loss and gradients; the loss may have the relative error of the logits."""
    logits, gradients = limits
    if on.logits:
        yield Measure(f"logits, {label}", relative_error(on.logits, off.logits), logits)
    error = abs(on.loss - off.loss) / max(abs(off.loss), TINY)
    yield Measure(f"loss, {label}", error if error < HUGE else HUGE, logits)
    where = f"worst in {worst_parameter(on.gradients, off.gradients)}"
    yield Measure(f"gradients, {label}", gradient_error(on.gradients, off.gradients), gradients, where)


def failed_result(check_name: str, error: BaseException) -> CheckResult:
    """Return the result of a check that ended with an exception. Raises it again if memory ran out."""
    if "OutOfMemory" in type(error).__name__:
        raise error
    return CheckResult(check_name, "raised", describe_exception(error))
