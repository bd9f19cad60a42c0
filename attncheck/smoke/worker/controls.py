"""Compares a run with the same documents in isolation and, if they differ, checks other explanations.

Three controls run only if a limit is exceeded. First, the same batch is run again: what differs then is random, and the
limit is raised to that difference. Second, the loss's gradient at the logits is compared with the one that labels and
logits give: if it is wrong and the logits are not, the loss is at fault. Third, the experts chosen for each token are
compared. In 16 bits rounding chooses others at a few tokens; after that, neither logits nor gradients can be exact to
rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import Measure
from attncheck.smoke.worker.data.packing import Batch, DocumentSpan
from attncheck.smoke.worker.probe import Spot, count_flips, measure_loss_fault, watch_forwards
from attncheck.smoke.worker.testbed import (
    ROUNDING_MULTIPLE,
    ModelRun,
    Testbed,
    gradient_error,
    relative_error,
    worst_parameter,
)

MAX_LOSS_ERROR = 0.01  # relative, of the loss's gradient at the logits: rounding it to bfloat16 costs 0.0017
SLACK_FLIPS = 3  # tokens with different experts that are allowed beyond the measured effect of rounding
UNMEASURABLE = 1e30  # `relative_error` for NaN


@dataclass(frozen=True)
class Layout:
    """How documents were passed to a model, and a function that repeats the run."""

    run: Callable[[], ModelRun]
    model: nn.Module
    spots: tuple[Spot, ...]
    documents: tuple[Tensor, ...]  # in the order of `spots` and of the run's logits
    numbers: tuple[int, ...]  # the documents' numbers among the testbed's


@dataclass(frozen=True)
class Comparison:
    """The measures of a run against the documents in isolation, and their limitations."""

    measures: tuple[Measure, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def beyond(self) -> bool:
        """Whether a measure exceeds its limit."""
        return any(measure.beyond for measure in self.measures)


def batch_layout(
    testbed: Testbed, model: nn.Module, batch: Batch, order: Sequence[int], plan: Plan, backward: bool = True
) -> Layout:
    """Return the layout of a batch that holds the testbed's documents in this order."""
    spots, documents = tuple((0, span) for span in batch.spans), tuple(testbed.documents[index] for index in order)
    return Layout(lambda: testbed.run_batch(model, batch, plan, backward), model, spots, documents, tuple(order))


def unpacked_layout(testbed: Testbed, model: nn.Module, documents: Sequence[Tensor], plan: Plan) -> Layout:
    """Return the layout of documents one at a time."""
    spots = tuple((number, DocumentSpan(0, 0, len(document))) for number, document in enumerate(documents))
    numbers = tuple(range(len(documents)))
    return Layout(lambda: testbed.run_unpacked(model, documents, plan), model, spots, tuple(documents), numbers)


def compare(
    testbed: Testbed, layout: Layout, plan: Plan, expected: ModelRun, limits: tuple[float, float], title: str
) -> Comparison:
    """Return the differences of a layout's logits and gradients from `expected`, with documents in the same order.

    `title` follows the measures' names: "logits, " and "gradients, "; `plan` is that of the layout's run.
    """
    actual = layout.run()
    measures = _measure(actual, expected, layout.numbers, limits, title)
    values = [measure.value for measure in measures]
    if not any(measure.beyond for measure in measures) or not max(values) < UNMEASURABLE:
        return Comparison(measures)
    with watch_forwards(layout.model, _can_intercept(plan)) as forwards:
        again = layout.run()
    comparison = _hold_to_repetition(Comparison(measures), actual, again)
    if comparison.beyond:
        loss_error = measure_loss_fault(forwards, layout.spots, layout.documents)
        comparison = _excuse_loss(comparison, loss_error)
    if comparison.beyond and plan.precision != "fp32" and _can_intercept(plan):
        reference = unpacked_layout(testbed, *_build_reference(testbed, layout.documents))
        with watch_forwards(reference.model) as expected_forwards:
            reference.run()
        flips = count_flips((forwards, layout.spots), (expected_forwards, reference.spots))
        rounded = count_rounding_flips(testbed, layout.documents)
        if flips and rounded and 0 < sum(flips) <= ROUNDING_MULTIPLE * sum(rounded) + SLACK_FLIPS:
            comparison = _excuse_flips(comparison, layout, flips, (again, expected), limits, title)
    return comparison


def mode_warnings(testbed: Testbed) -> tuple[str, ...]:
    """Return a line if models are compared in evaluation mode, because they are random in training mode."""
    if not testbed.random_in_training:
        return ()
    return (f"{testbed.random_in_training}; compared in evaluation mode",)


def _build_reference(testbed: Testbed, documents: Sequence[Tensor]) -> tuple[nn.Module, Sequence[Tensor], Plan]:
    plan = testbed.plan.without_optimizations("fp32")
    return testbed.build_model(plan, "eager"), documents, plan


def _can_intercept(plan: Plan) -> bool:
    """Return whether functions may be intercepted: a compiler would trace the interception."""
    return not plan.compile and plan.attn_implementation != "flex_attention"


def _measure(
    actual: ModelRun, expected: ModelRun, numbers: Sequence[int], limits: tuple[float, float], title: str
) -> tuple[Measure, ...]:
    errors = [relative_error([a], [e]) for a, e in zip(actual.logits, expected.logits, strict=True)]
    worst = max(range(len(errors)), key=lambda index: errors[index])
    where = f"worst in document {numbers[worst]} of {len(actual.logits[worst])} tokens"
    logits = Measure(f"logits, {title}", relative_error(actual.logits, expected.logits), limits[0], where)
    if not actual.gradients:
        return (logits,)
    where = f"worst in {worst_parameter(actual.gradients, expected.gradients)}"
    error = gradient_error(actual.gradients, expected.gradients)
    return logits, Measure(f"gradients, {title}", error, limits[1], where)


def _hold_to_repetition(comparison: Comparison, first: ModelRun, again: ModelRun) -> Comparison:
    """Return the comparison with limits no tighter than the difference between two runs of the same batch."""
    differences = [relative_error(again.logits, first.logits), gradient_error(again.gradients, first.gradients)]
    measures, warnings = [], []
    for measure, difference in zip(comparison.measures, differences):
        if measure.beyond and ROUNDING_MULTIPLE * difference > measure.limit:
            warnings.append(
                f"random in training mode: two runs of the same batch differ by {difference:.2g} in {measure.what}"
            )
            measure = replace(measure, limit=ROUNDING_MULTIPLE * difference)
        measures.append(measure)
    return replace(comparison, measures=tuple(measures), warnings=tuple(warnings))


def _excuse_loss(comparison: Comparison, loss_error: float) -> Comparison:
    """Return the comparison without its gradients if the logits agree and only the loss is wrong."""
    logits, *rest = comparison.measures
    if logits.beyond or loss_error <= MAX_LOSS_ERROR:
        return comparison
    return replace(
        comparison,
        measures=(logits,),
        warnings=(
            *comparison.warnings,
            (
                "the logits agree but the loss is wrong: its gradient at the logits is off by "
                f"{loss_error:.2g}, because of its labels or its normalisation; attention is correct"
            ),
            *(f"{m.what}: off by {m.value:.2g}, for that reason" for m in rest),
        ),
    )


def count_rounding_flips(testbed: Testbed, documents: Sequence[Tensor], sharp_weights: bool = True) -> list[int] | None:
    """Return, for each document, the number of tokens at which rounding selects other experts, with eager attention."""
    watched = []
    bare_plan = testbed.plan.without_optimizations()
    for plan in (bare_plan, replace(bare_plan, precision="fp32")):
        model = testbed.build_model(plan, "eager", sharp_weights)
        layout = unpacked_layout(testbed, model, documents, plan)
        with watch_forwards(layout.model) as forwards:
            layout.run()
        watched.append((forwards, layout.spots))
    return count_flips(watched[0], watched[1])


def _excuse_flips(
    comparison: Comparison,
    layout: Layout,
    flips: Sequence[int],
    runs: tuple[ModelRun, ModelRun],
    limits: tuple[float, float],
    title: str,
) -> Comparison:
    """Return the comparison of the logits of only those documents whose tokens have the same experts."""
    alike = [index for index, count in enumerate(flips) if not count]
    note = (
        f"{title}: rounding selected different experts at {sum(flips)} tokens; only documents without "
        "such tokens were compared"
    )
    actual, expected = (ModelRun(tuple(run.logits[index] for index in alike), 0.0, {}) for run in runs)
    numbers = [layout.numbers[index] for index in alike]
    measures = _measure(actual, expected, numbers, limits, title) if alike else ()
    return replace(comparison, measures=measures, notes=(*comparison.notes, note))
