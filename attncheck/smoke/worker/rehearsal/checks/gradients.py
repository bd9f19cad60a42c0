"""Are the gradients of the first step those of its loss? Against each document alone, before clipping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.rehearsal.checks.loss import matching_normalisation
from attncheck.smoke.worker.rehearsal.evidence import Evidence
from attncheck.smoke.worker.testbed import gradient_error, gradient_norm, worst_parameter

FP32_LIMIT = 1e-4  # relative error, Frobenius over all parameters; healthy ones are at 1e-6
ROUNDING_MULTIPLE = 3.0
MAX_RANK_DIFFERENCE = 0.01  # relative, between ranks that step alike
SCALE_LIMIT = 5e-3  # of the norm: a factor, which Adam hides, is wrong above it


def run(evidence: Evidence) -> CheckResult:
    """Compare the gradients of every rank with the truth's, direction and length apart."""
    record = evidence.step.ranks[0]
    normalisation = matching_normalisation(evidence)
    if not record.gradients:
        return CheckResult("gradients", "skipped", "the gradients were not seen: they are sharded over ranks")
    expected = evidence.gradients(evidence.weights(normalisation or "step_tokens"))
    shared = {name: expected[name] for name in expected if name in record.gradients}
    if not shared:
        return CheckResult("gradients", "skipped", "only parameters that the model alone does not have are trained")
    actual = {name: record.gradients[name] for name in shared}
    scale = _fit_scale(actual, shared)
    scaled = {name: gradient * scale for name, gradient in shared.items()}
    limit = _limit(evidence, shared)
    where = f"worst in {worst_parameter(actual, scaled)}"
    measures = [Measure("gradients of the first step, direction", gradient_error(actual, scaled), limit, where)]
    if normalisation is not None:
        excess = abs(scale - 1.0)
        measures.append(Measure("gradients of the first step, factor less 1", excess, max(SCALE_LIMIT, limit)))
    return CheckResult(
        "gradients",
        measures=tuple(measures),
        violations=(*_name_scale(evidence, scale, normalisation is not None), *_compare_ranks(evidence)),
        notes=(f"norm {gradient_norm(actual):.4g}, {len(shared)} of {len(expected)} parameters compared",),
    )


def _fit_scale(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    product = sum(float((actual[name].double() * expected[name].double()).sum()) for name in expected)
    square = sum(float(expected[name].double().square().sum()) for name in expected)
    return product / square if square else 0.0


def _limit(evidence: Evidence, expected: Mapping[str, Tensor]) -> float:
    if evidence.rounded is None:
        return FP32_LIMIT
    weights = evidence.weights(matching_normalisation(evidence) or "step_tokens")
    rounded = evidence.gradients(weights, evidence.rounded)
    error = gradient_error({name: rounded[name] for name in expected}, expected)
    return max(FP32_LIMIT, ROUNDING_MULTIPLE * error)


def _name_scale(evidence: Evidence, scale: float, is_expected: bool) -> Iterator[str]:
    """Yield what a factor on all gradients is, where the loss itself is right."""
    if not is_expected or abs(scale - 1.0) <= SCALE_LIMIT:
        return
    names = {
        float(evidence.batches): "the number of batches to a step",
        1.0 / evidence.batches: "one over the number of batches to a step",
        float(len(evidence.step.ranks)): "the number of ranks",
        1.0 / len(evidence.step.ranks): "one over the number of ranks",
    }
    named = next((text for value, text in names.items() if abs(scale / value - 1) < 0.02 and value != 1.0), "")
    if named:
        yield f"the gradients are {scale:.4g} times those of the loss: {named}"


def _compare_ranks(evidence: Evidence) -> Iterator[str]:
    """Yield that ranks step with gradients that differ: they are not averaged over ranks."""
    first, *others = evidence.step.ranks
    for record in others:
        for name, gradient in record.gradients.items():
            other = first.gradients.get(name)
            if other is None or other.shape != gradient.shape:
                continue
            if float((other - gradient).norm()) > MAX_RANK_DIFFERENCE * float(other.norm()):
                yield f"rank {record.rank} steps with other gradients than rank 0: {name} differs"
                return
