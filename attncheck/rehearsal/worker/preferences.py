"""Determines a step's loss of pairs by its gradients: the documented one, or another one.

At the first step the policy is its own reference, so the loss is a constant that does not show which tokens count, or
how much. The gradients show it, for each answer separately. If log-probabilities are sums, a pair's prompt cancels in
them: its tokens add the same to the chosen and to the rejected answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.preferences import FREE_LOSSES, PREFERENCE_LOSSES, Preference, Slopes
from attncheck.core.rehearsal import Normalisation
from attncheck.rehearsal.worker.definitions import (
    SCALE_LIMIT,
    Definition,
    Explanation,
    Fit,
    WeightFit,
    fit_gradients,
    fit_weights,
    gradient_limit,
    is_near,
    list_factors,
)
from attncheck.rehearsal.worker.evidence import MIN_LIMIT, ROUNDING_MULTIPLE, SAMPLED_PIECES, Evidence
from attncheck.rehearsal.worker.pairs import find_pair, is_chosen

OTHER_REFERENCE = "the reference is not the model that training starts from"
NEAR_FACTOR = 0.02  # relative: a factor on all gradients is a number of batches or ranks


def define_loss(evidence: Evidence, preference: Preference, swaps: bool = False) -> Definition:
    """Return the loss: the mean over pairs is twice the mean over answers, which are signed.

    With a reference the log-ratios are 0. Without one, each pair has the slopes of the model that training starts from.
    """
    name: Normalisation = "document_tokens" if preference.averages_tokens else "document_sums"
    counts, pairs = evidence.count_targets(), [find_pair(piece.segment.document) for piece in evidence.step.pieces]
    needs_values = bool(preference.chosen_weight) or not preference.has_reference
    sums = evidence.sum_nll() if needs_values else [0.0] * len(counts)
    is_first = [is_chosen(piece.segment.document) != swaps for piece in evidence.step.pieces]
    log_ps: dict[int, dict[bool, float]] = {}
    for pair, first, nll, count in zip(pairs, is_first, sums, counts, strict=True):
        answers = log_ps.setdefault(pair, {True: 0.0, False: 0.0})
        answers[first] -= nll / (max(1, count) if preference.averages_tokens else 1)
    slopes = {
        pair: preference.slopes if preference.has_reference else preference.measure(answers[True], answers[False])
        for pair, answers in log_ps.items()
        if pair >= 0
    }
    weights = [
        2 * (slopes[pair].chosen if first else slopes[pair].rejected) if pair >= 0 else 0.0
        for pair, first in zip(pairs, is_first, strict=True)
    ]
    value = sum(pair.value for pair in slopes.values()) / max(1, len(slopes))
    if preference.chosen_weight:
        chosen = [count if pair >= 0 and first else 0 for pair, first, count in zip(pairs, is_first, counts)]
        own = evidence.list_shares("document_tokens" if preference.averages_chosen else "batch_tokens", chosen)
        own = [preference.chosen_weight * share if count else 0.0 for share, count in zip(own, chosen)]
        value += sum(share * nll for share, nll in zip(own, sums, strict=True))
        shares = evidence.list_shares(name, counts)
        weights = [weight + (added / share if added else 0.0) for weight, added, share in zip(weights, own, shares)]
    return Definition(name, weights=tuple(weights), value=value, name=preference.text)


def loss_limit(evidence: Evidence, preference: Preference) -> float:
    """Return the largest allowed relative error of the loss: log-ratios of 0 have rounding errors."""
    slopes = preference.slopes
    if preference.chosen_weight or not preference.has_reference:
        definition = define_loss(evidence, preference)
        steepest = max(map(abs, definition.weights), default=0.0) / 2
        slopes = Slopes(definition.value or 0.0, steepest, -steepest)
    if evidence.rounded is None or not slopes.value:
        return MIN_LIMIT
    errors = [0.0]
    for piece in evidence.judged_pieces[:SAMPLED_PIECES]:
        labels, counts = piece.shift_labels(1)
        rounded, exact = (model.describe(piece.tokens).nll(labels) for model in (evidence.rounded, evidence.truth))
        difference = float((rounded - exact)[counts].sum())
        errors.append(abs(difference) / (max(1, int(counts.sum())) if preference.averages_tokens else 1))
    slope = max(abs(slopes.chosen), abs(slopes.rejected))
    return max(MIN_LIMIT, ROUNDING_MULTIPLE * slope * max(errors) / abs(slopes.value))


def explain_loss(evidence: Evidence, preference: Preference) -> Explanation | None:
    """Return the step's loss, judged by its gradients; None if no weights of its answers explain them."""
    definition = define_loss(evidence, preference)
    observed, value = evidence.observed_loss, definition.value or 0.0
    is_value_right = is_near(value, observed, loss_limit(evidence, preference))
    fit = fit_gradients(evidence, definition)
    if fit is None and not (preference.has_reference or is_value_right):
        return None
    if fit is None:
        return _explain_value(evidence, definition, is_value_right)
    slack = gradient_limit(evidence, definition)
    limit = max(SCALE_LIMIT, slack)
    if fit.error <= slack:
        other_loss = None if is_near(1.0, fit.scale, limit) else _explain_other_loss(evidence, preference, slack)
        return other_loss or _explain_scale(evidence, preference, definition, fit, limit)
    for batch in range(evidence.batches if evidence.batches > 1 else 0):
        alone = fit_gradients(evidence, replace(definition, batch=batch))
        if alone is not None and alone.error <= slack:  # the loss is right, and most of its gradients are lost
            return Explanation(definition)
    explanations = list(_iter_explanations(evidence, preference, definition, slack))
    exact = [explanation for explanation in explanations if is_near(1.0, explanation.scale or 0.0, limit)]
    for explanation in (*exact, _explain_other_loss(evidence, preference, slack), *explanations):
        if explanation is not None:
            return explanation
    return _explain_without_ends(evidence, preference, slack) or _explain_weights(evidence, definition, slack)


def _iter_explanations(
    evidence: Evidence, preference: Preference, definition: Definition, slack: float
) -> Iterator[Explanation]:
    """Yield the faults whose gradients have the direction of the step's."""
    for other, fault in _iter_faults(evidence, preference, definition):
        fit = fit_gradients(evidence, other)
        if fit is not None and fit.error <= slack:
            yield Explanation(other, 1.0, f"{fault}{_tell_scale(fit, slack)}", fit.scale)


def _explain_value(evidence: Evidence, definition: Definition, is_value_right: bool) -> Explanation:
    """Return the explanation by the loss alone, if the gradients were not recorded."""
    observed, value = evidence.observed_loss, definition.value or 0.0
    if is_value_right:
        return Explanation(definition)
    for text, factor in list_factors(evidence).items():
        if factor != 1.0 and is_near(value * factor, observed, NEAR_FACTOR):
            return Explanation(definition, factor, text)
    return Explanation(definition, observed / value if value else 1.0, OTHER_REFERENCE)


def _explain_other_loss(evidence: Evidence, preference: Preference, slack: float) -> Explanation | None:
    """Return another loss with the same parameters as the explanation; None if none matches."""
    for name in PREFERENCE_LOSSES if preference.has_reference else ():
        other = replace(preference, loss=name)
        if other.slopes == preference.slopes and other.averages_tokens == preference.averages_tokens:
            continue
        definition = define_loss(evidence, other)
        if not is_near(definition.value or 0.0, evidence.observed_loss, loss_limit(evidence, other)):
            continue
        fit = fit_gradients(evidence, definition)
        if fit is not None and fit.error <= slack and is_near(1.0, fit.scale, max(SCALE_LIMIT, slack)):
            return Explanation(definition, 1.0, f"it is {other.text}, not {preference.loss}", fit.scale)
    return None


def _explain_scale(
    evidence: Evidence, preference: Preference, definition: Definition, fit: Fit, slack: float
) -> Explanation:
    """Return the explanation of gradients that are a multiple of the documented ones."""
    observed, value = evidence.observed_loss, definition.value or 0.0
    ratio, limit = observed / value if value else 1.0, loss_limit(evidence, preference)
    is_value_right = is_near(value, observed, limit)
    if is_near(1.0, fit.scale, slack):
        return Explanation(definition, 1.0 if is_value_right else ratio, scale=fit.scale)
    if is_near(-1.0, fit.scale, slack):
        return Explanation(definition, ratio, "chosen and rejected answers are swapped", fit.scale)
    for text, factor in list_factors(evidence).items():
        if factor != 1.0 and is_near(factor, fit.scale, slack):
            if is_value_right:  # it is only the gradients'
                return Explanation(definition, scale=fit.scale)
            if is_near(factor, ratio, max(limit, slack)):
                return Explanation(definition, ratio, text, fit.scale)
    is_plain = preference.has_reference and not preference.chosen_weight
    betas = (preference.beta * abs(fit.scale), preference.beta / abs(fit.scale)) if is_plain else ()
    for beta in betas:
        other = replace(preference, beta=beta).slopes
        expected = preference.slopes.chosen or preference.slopes.rejected
        slope = (other.chosen or other.rejected) / expected
        if is_near(abs(fit.scale), slope, slack) and is_near(other.value, observed, limit):
            swapped = ", and chosen and rejected answers are swapped" if fit.scale < 0 else ""
            fault = f"beta is {beta:.3g}, not {preference.beta:g}{swapped}"
            return Explanation(definition, ratio, fault, fit.scale)
    fault = f"{ratio:.4g} times {definition.text}, with {fit.scale:.4g} times its gradients"
    return Explanation(definition, ratio, fault, fit.scale)


def _tell_scale(fit: Fit, slack: float) -> str:
    return (
        ""
        if is_near(1.0, fit.scale, max(SCALE_LIMIT, slack))
        else f" (its gradients are off by the same {fit.scale:.4g})"
    )


def _iter_faults(
    evidence: Evidence, preference: Preference, definition: Definition
) -> Iterator[tuple[Definition, str]]:
    """Yield the loss with other tokens or answers counted, the simplest first."""
    if preference.chosen_weight:
        yield define_loss(evidence, replace(preference, chosen_weight=0.0)), "the chosen answers' own loss is not added"
    if preference.chosen_weight or not preference.has_reference:
        yield define_loss(evidence, preference, swaps=True), "chosen and rejected answers are swapped"
    if not preference.has_reference:
        yield from _iter_free_faults(evidence, preference)
        return
    for chosen, name in ((True, "rejected"), (False, "chosen")):
        weights = tuple(
            weight if is_chosen(piece.segment.document) == chosen else 0.0
            for weight, piece in zip(definition.weights, evidence.step.pieces, strict=True)
        )
        yield replace(definition, weights=weights), f"no gradient comes from the {name} answers"
    if preference.averages_tokens:
        averaged = definition
        summed = replace(definition, normalisation="document_sums")
        yield summed, "log-probabilities are summed over an answer's tokens, but the documentation says mean"
    else:
        averaged = replace(definition, normalisation="document_tokens")
        yield averaged, "log-probabilities are averaged over an answer's tokens, but the documentation says sum"
    for other in dict.fromkeys((definition, averaged)):
        yield (
            replace(other, shift=2),
            "each token is trained to predict the one after the next: labels are shifted twice",
        )
        yield replace(other, shift=0), "each token is trained to predict itself: labels are not shifted"
    yield replace(averaged, every=True), "log-probabilities are averaged over the prompt's tokens too"
    yield from _iter_without_reference(evidence, preference, definition)


def _iter_free_faults(evidence: Evidence, preference: Preference) -> Iterator[tuple[Definition, str]]:
    """Yield the faults of a loss without a reference."""
    yield (
        define_loss(evidence, replace(preference, has_reference=True)),
        "a reference is subtracted",
    )
    for loss in FREE_LOSSES:
        other = replace(preference, loss=loss)
        if loss != preference.loss:
            yield define_loss(evidence, other), f"it is {other.text}, not {preference.loss}"


def _iter_without_reference(
    evidence: Evidence, preference: Preference, definition: Definition
) -> Iterator[tuple[Definition, str]]:
    """Yield DPO's loss without the reference's log-probabilities: it weights each pair by the policy's own."""
    if preference.loss != "sigmoid" or preference.label_smoothing:
        return
    free = define_loss(evidence, replace(preference, has_reference=False))
    if is_near(free.value or 0.0, evidence.observed_loss, max(NEAR_FACTOR, loss_limit(evidence, preference))):
        free = replace(definition, weights=free.weights)
        yield free, "the reference's log-probabilities are not subtracted from the policy's"


def _explain_without_ends(evidence: Evidence, preference: Preference, slack: float) -> Explanation | None:
    """Return the explanation that an answer's EOS token does not count, if labels are not model inputs."""
    if evidence.step.labels_enter or evidence.step.kept != (None, None):
        return None
    reading = replace(evidence, step=replace(evidence.step, kept=(None, -1)))
    fit = fit_gradients(reading, define_loss(reading, preference))
    if fit is None or not fit.error <= slack:
        return None
    fault = (
        "the token that ends an answer is not in the loss, so the model does not learn to "
        f"stop{_tell_scale(fit, slack)}"
    )
    return Explanation(define_loss(evidence, preference), 1.0, fault, fit.scale)


def _explain_weights(evidence: Evidence, definition: Definition, slack: float) -> Explanation | None:
    """Return the fault if each answer has another weight; None if no weights give these gradients."""
    fit = fit_weights(evidence, definition)
    if fit is None or not fit.error <= slack:
        return None
    observed, value = evidence.observed_loss, definition.value or 0.0
    answers = _list_weights(evidence, definition, fit)
    weights = [weight for pair in answers for weight in pair.values()]
    pairs = [(pair[True], pair[False]) for pair in answers if len(pair) == 2]
    if not weights:
        return None
    limit = max(NEAR_FACTOR, slack)
    alike = pairs and all(
        abs(chosen - rejected) <= limit * max(abs(chosen), abs(rejected)) for chosen, rejected in pairs
    )
    least, most = min(weights), max(weights)
    fault = f"the answers' weights are {least:.3g} to {most:.3g} times what they should be"
    if alike and not is_near(value, observed, limit):
        fault = f"{OTHER_REFERENCE}: the pairs' weights are {least:.3g} to {most:.3g} times what they should be"
    fault += "; each pair's rejected answer becomes more likely" if most < 0 else ""
    if most > 0 and (reversed_labels := sum(weight < -limit for weight in weights)):
        fault += f": {reversed_labels} of {len(weights)} answers are trained with the other label"
    return Explanation(definition, observed / value if value else 1.0, fault)


def _list_weights(evidence: Evidence, definition: Definition, fit: WeightFit) -> list[dict[bool, float]]:
    """Return the factor on the correct weight of each pair's chosen (True) and rejected answer."""
    ratios: dict[int, dict[bool, float]] = {}
    for piece, weight, expected in zip(evidence.step.pieces, fit.weights, definition.weights, strict=True):
        if piece.segment.document >= 0 and expected:
            document = piece.segment.document
            ratios.setdefault(find_pair(document), {})[is_chosen(document)] = weight / expected
    return list(ratios.values())
