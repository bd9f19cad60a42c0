"""A loss of responses with advantages: its documented definition, and possible faults.

At the first step every response is as likely as before it, and the gradients of the loss are those of a weighted sum of
−log p: a response's weight is its advantage. The value of −advantage × ratio does not show which tokens count, so
gradients decide if they were recorded.
"""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.rehearsal import NORMALISATION_TEXTS, NORMALISATIONS, PolicyGradient
from attncheck.rehearsal.worker.definitions import (
    SCALE_LIMIT,
    Definition,
    Explanation,
    compute_loss,
    fit_gradients,
    fit_weights,
    gradient_limit,
    list_shares,
)
from attncheck.rehearsal.worker.evidence import Evidence

NEGATED_LIMIT = 0.05  # relative, in bfloat16 too
WEIGHT_LIMIT = 0.05  # error of a response's weight, relative to the largest advantage
NAMED = 3  # the most responses in a message
MOVED = {  # (tokens by which the targets are moved, whether they stay in the response) -> the meaning
    (
        1,
        False,
    ): "the targets are one token late: they miss the first token of each response and include the one after its end",
    (
        -1,
        False,
    ): "the targets are one token early: they include the last token of each prompt and miss the end of each response",
    (1, True): "the first token of each response is not a target",
    (-1, True): "the end of each response is not a target",
}


def define_policy_losses(evidence: Evidence, policy: PolicyGradient) -> list[Definition]:
    """Return the definitions that the job's framework documents."""
    factor = (float(sum(evidence.count_targets())) if policy.is_sum else 1.0) / policy.divisor
    weights = tuple(advantage * factor for advantage in list_advantages(evidence))
    return [
        _add_value(evidence, policy, Definition(name, weights=weights))
        for name in evidence.step.objective.normalisations
    ]


def list_advantages(evidence: Evidence) -> list[float]:
    """Return the advantage of each piece of the step, 0 if it is not one of the driver's rollouts."""
    advantages = {rollout.document: rollout.advantage for rollout in evidence.rollouts[0]}
    return [advantages.get(piece.segment.document, 0.0) for piece in evidence.step.pieces]


def _add_value(evidence: Evidence, policy: PolicyGradient, definition: Definition) -> Definition:
    """Return a definition with the loss's value and its name."""
    name = policy.describe(NORMALISATION_TEXTS[definition.normalisation])
    if not policy.of_ratio:
        return replace(definition, name=name)
    counts = evidence.count_targets(definition.shift, definition.every)
    shares = list_shares(evidence, definition)
    value = -sum(share * count for share, count in zip(shares, counts, strict=True))
    return replace(definition, name=name, value=value)


def measure_magnitude(evidence: Evidence, definition: Definition) -> float:
    """Return the sum of the absolute terms of the loss, because rounding is relative to it."""
    sums = [float(count) for count in evidence.count_targets()] if definition.value is not None else evidence.sum_nll()
    return sum(abs(share) * own for share, own in zip(list_shares(evidence, definition), sums, strict=True))


def explain_policy_loss(evidence: Evidence, policy: PolicyGradient, limit: float) -> Explanation | None:
    """Return the definition that the step's loss and gradients match; None if none does."""
    definitions = define_policy_losses(evidence, policy)
    slack = gradient_limit(evidence, definitions[0])
    if fit_gradients(evidence, definitions[0]) is None:
        return next((Explanation(own) for own in definitions if _has_value(evidence, own, 1.0, limit)), None)
    for definition in definitions:
        explanation = _explain_multiple(evidence, definition, slack, limit)
        if explanation is not None:
            return explanation
    if _is_of_one_batch(evidence, definitions[0], slack) and _has_value(evidence, definitions[0], 1.0, limit):
        return Explanation(definitions[0])  # the loss is right, but the gradients lack batches
    for reading, definition, fault in _iter_faults(evidence, definitions[0]):
        fit = fit_gradients(reading, definition)
        if fit is not None and fit.error <= slack:
            multiple = f" ({fit.scale:.4g} times it)" if abs(fit.scale - 1.0) > max(SCALE_LIMIT, slack) else ""
            return Explanation(definition, 1.0, f"{fault}{multiple}", fit.scale)
    return _explain_weights(evidence, definitions[0], slack)


def _explain_multiple(evidence: Evidence, definition: Definition, slack: float, limit: float) -> Explanation | None:
    """Return the step's factor on a documented definition, as an explanation; None if it is not a multiple of one."""
    fit = fit_gradients(evidence, definition)
    if fit is None or fit.error > slack:
        return None
    is_right = abs(fit.scale - 1.0) <= max(SCALE_LIMIT, slack)
    if is_right or not _has_value(evidence, definition, fit.scale, max(limit, slack)):
        expected = compute_loss(evidence, definition)
        factor = 1.0 if _has_value(evidence, definition, 1.0, limit) else evidence.observed_loss / expected
        return Explanation(definition, factor, scale=fit.scale)  # a factor that only the gradients have
    return Explanation(definition, fit.scale, _name_factor(evidence, fit.scale), fit.scale)


def is_negated(explanation: Explanation | None) -> bool:
    """Return whether a loss is the documented one with the opposite sign."""
    return explanation is not None and abs(explanation.factor + 1.0) < NEGATED_LIMIT


def _is_of_one_batch(evidence: Evidence, definition: Definition, slack: float) -> bool:
    """Return whether the gradients are those of one batch of several."""
    batches = range(evidence.batches if evidence.batches > 1 else 0)
    fits = [fit_gradients(evidence, replace(definition, batch=batch)) for batch in batches]
    return any(fit is not None and fit.error <= slack for fit in fits)


def _has_value(evidence: Evidence, definition: Definition, factor: float, limit: float) -> bool:
    error = abs(evidence.observed_loss - factor * compute_loss(evidence, definition))
    return error <= limit * abs(factor) * measure_magnitude(evidence, definition)


def _name_factor(evidence: Evidence, factor: float) -> str:
    """Return the meaning of a factor on the whole loss."""
    if factor < 0:
        size = "" if abs(factor + 1.0) < SCALE_LIMIT else f" ({factor:.4g} times the loss)"
        return f"the advantages have the wrong sign: rewarded responses become less likely{size}"
    batches, ranks = evidence.batches, len(evidence.step.ranks)
    names = {
        float(ranks): "too large by the number of ranks",
        1.0 / ranks: "divided once too often by the number of ranks",
        float(batches): "too large by the number of batches per step",
        1.0 / batches: "divided by the number of batches per step",
    }
    named = next((text for value, text in names.items() if value != 1.0 and abs(factor / value - 1) < 0.02), "")
    return f"{factor:.4g} times the documented loss{f': {named}' if named else ''}"


def _iter_faults(evidence: Evidence, documented: Definition) -> Iterator[tuple[Evidence, Definition, str]]:
    """Yield the loss under other definitions, the simplest first, each with the matching targets of the step."""
    for name in NORMALISATIONS:
        if name != documented.normalisation:
            yield evidence, replace(documented, normalisation=name), NORMALISATION_TEXTS[name]
    yield evidence, replace(documented, weights=()), "advantages are ignored: every response has the same weight"
    yield evidence, replace(documented, every=True), "every token is a target, including prompts and markup"
    readings = [
        (replace(evidence, step=replace(evidence.step, moved=moved, narrowed=narrowed)), text)
        for (moved, narrowed), text in MOVED.items()
    ]
    if evidence.truth.temperature != 1.0 and evidence.truth.memory is None:
        text = f"the logits are not divided by the temperature, {evidence.truth.temperature:g}"
        readings.append((replace(evidence, truth=evidence.truth.with_temperature(1.0)), text))
    for name in dict.fromkeys((documented.normalisation, *NORMALISATIONS)):
        also = f"; {NORMALISATION_TEXTS[name]}" * (name != documented.normalisation)
        yield from ((own, replace(documented, normalisation=name), text + also) for own, text in readings)


def _explain_weights(evidence: Evidence, definition: Definition, slack: float) -> Explanation | None:
    """Return the weights that the gradients show, if they are a weighted sum over responses; otherwise None."""
    fit = fit_weights(evidence, definition)
    if fit is None or fit.error > slack:
        return None
    largest = max(abs(weight) for weight in definition.weights)
    wrong = [
        (piece.segment.document, weight, expected)
        for piece, weight, expected in zip(evidence.step.pieces, fit.weights, definition.weights, strict=True)
        if abs(weight - expected) > WEIGHT_LIMIT * largest
    ]
    texts = [f"document {number}'s weighs {weight:.3g}, not {expected:.3g}" for number, weight, expected in wrong]
    fault = f"{len(wrong)} responses are not weighted by their advantages: {', '.join(texts[:NAMED])}"
    return Explanation(replace(definition, weights=fit.weights), 1.0, fault, 1.0) if wrong else None
