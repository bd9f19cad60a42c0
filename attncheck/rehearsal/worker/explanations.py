"""Determines the loss of a step by its value and its gradients: the documented one, or another one.

A mean of −log p is defined by each token's target and every target's weight. If gradients were recorded, they decide.
The differentiated loss may be any multiple of the mean (a sum that is divided later, a gradient scaler's), as long as
the optimiser steps with the mean's gradients. Two definitions may agree on a value by chance, but not on the gradients
of all parameters.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from attncheck.core.rehearsal import FREE, NORMALISATION_TEXTS, Normalisation
from attncheck.rehearsal.worker import preferences
from attncheck.rehearsal.worker.definitions import (
    SCALE_LIMIT,
    Definition,
    Explanation,
    compute_loss,
    fit_gradients,
    gradient_limit,
    is_near,
    list_factors,
    name_factor,
)
from attncheck.rehearsal.worker.evidence import FP32_LIMIT, MIN_LIMIT, ROUNDING_MULTIPLE, Evidence
from attncheck.rehearsal.worker.policy import MOVED, define_policy_losses, explain_policy_loss
from attncheck.rehearsal.worker.regularisers import Regularised, find_regulariser
from attncheck.rehearsal.worker.step import Sliced

BACKWARDS_ERROR = 0.3  # relative error of the gradients
HALF_LIMIT = 2.0**-7  # of a loss that the job computes in bfloat16, which has eight bits
FAR = 3.0  # times the error of another definition
NO_END: tuple[int | None, int | None] = (None, -1)
KEPT: dict[tuple[int | None, int | None], str] = {  # (first, last) of each answer's targets that count -> the meaning
    NO_END: "the last token of each answer is not a target",
    (-1, None): "only the last token of each answer is a target",
    **{(first, None): f"the first {first} tokens of each answer are not targets" for first in (2, 3, 4)},
}


def documented(evidence: Evidence) -> list[Definition]:
    """Return the definitions that the job's framework documents."""
    policy = evidence.step.objective.policy
    if policy is not None:
        return define_policy_losses(evidence, policy)
    if evidence.step.objective.preference is not None:
        return [preferences.define_loss(evidence, evidence.step.objective.preference)]
    return [Definition(name) for name in evidence.step.objective.normalisations]


def loss_limit(evidence: Evidence) -> float:
    """Return the largest allowed relative error of the loss: several times eager attention's rounding error."""
    if evidence.step.objective.preference is not None:
        return preferences.loss_limit(evidence, evidence.step.objective.preference)
    if evidence.rounded is None:
        return max(MIN_LIMIT, FP32_LIMIT)
    losses = torch.tensor([loss for record in evidence.step.ranks for loss in record.losses])
    is_half = str(evidence.step.calls[0].description["dtype"]) == str(torch.bfloat16)
    least = HALF_LIMIT if is_half and torch.equal(losses.bfloat16().float(), losses) else MIN_LIMIT
    exact = rounded = 0.0
    for piece in evidence.judged_pieces[:8]:
        labels, counts = piece.shift_labels(1)
        exact += float(evidence.describe(piece).nll(labels)[counts].sum())
        difference = evidence.rounded.describe(piece.tokens).nll(labels) - evidence.describe(piece).nll(labels)
        rounded += float(difference.abs()[counts].sum())
    return max(least, ROUNDING_MULTIPLE * rounded / max(exact, 1e-12))


def explain_loss(evidence: Evidence) -> Explanation | None:
    """Return the definition that the step's loss and gradients match; None if none does."""
    policy = evidence.step.objective.policy
    if policy is not None:
        return explain_policy_loss(evidence, policy, loss_limit(evidence))
    if evidence.step.objective.preference is not None:
        return preferences.explain_loss(evidence, evidence.step.objective.preference)
    limit, slack = loss_limit(evidence), gradient_limit(evidence, documented(evidence)[0])
    observed = evidence.observed_loss
    near = [item for item in documented(evidence) if is_near(compute_loss(evidence, item), observed, limit)]
    is_mean = evidence.step.objective.is_mean
    if not is_mean:  # a small model has about the same loss on all tokens, so that its value alone proves nothing
        near = [item for item in near if (fit := fit_gradients(evidence, item)) is None or fit.error <= slack]
    if near:
        definition = _choose_by_gradients(evidence, near)
        fit = fit_gradients(evidence, definition)
        moved = _explain_moved(evidence, slack) if fit is not None and fit.error > slack else None
        return moved or Explanation(definition)
    for definition in documented(evidence):
        fit, mean = fit_gradients(evidence, definition), compute_loss(evidence, definition)
        if fit is None or fit.error > slack or not mean:
            continue
        factor, near_one = observed / mean, max(SCALE_LIMIT, slack)
        if abs(fit.scale - 1.0) <= near_one:
            return Explanation(definition, factor, scale=fit.scale)
        if abs(fit.scale / factor - 1.0) > near_one and (texts := name_factor(evidence, fit.scale)):
            fault = f"the gradients are {fit.scale:.4g} times those of {definition.text}: {texts}"
            return Explanation(definition, factor, fault, fit.scale)
    for explanation in _iter_faults(evidence):
        value = compute_loss(evidence, explanation.definition) * explanation.factor
        if is_near(value, observed, limit):
            fit = fit_gradients(evidence, explanation.definition)
            if fit is None or fit.error <= slack:
                return replace(explanation, scale=fit.scale if fit is not None else None)
    exact = _explain_direction(evidence, slack) or _explain_moved(evidence, slack)
    by_value = None if exact or not is_mean else _explain_value(evidence, limit)
    return exact or by_value or _explain_backwards(evidence)


def find_own_regulariser(evidence: Evidence) -> Regularised | None:
    """Return the mean and the regulariser that a script adds to it, if they explain the step's loss and gradients."""
    if not evidence.is_own_script and evidence.step.objective.is_documented:
        return None
    means = documented(evidence)
    return find_regulariser(evidence, means, gradient_limit(evidence, means[0]), loss_limit(evidence))


def _choose_by_gradients(evidence: Evidence, definitions: list[Definition]) -> Definition:
    """Return the definition nearest to the step's gradients, among several with values too close to distinguish."""
    if len(definitions) == 1:
        return definitions[0]
    fits = [fit_gradients(evidence, definition) for definition in definitions]
    errors = [math.inf if fit is None else fit.error + abs(fit.scale - 1.0) for fit in fits]
    return definitions[errors.index(min(errors))]


def _explain_direction(evidence: Evidence, slack: float) -> Explanation | None:
    """Return the definition whose gradients have the step's direction, whatever its loss; None if there is none."""
    simple = [explanation for explanation in _iter_faults(evidence) if explanation.factor == 1.0]
    for explanation in (*(Explanation(definition) for definition in documented(evidence)), *simple):
        definition = explanation.definition
        fit, mean = fit_gradients(evidence, definition), compute_loss(evidence, definition)
        if fit is not None and fit.error <= slack and mean:
            factor = evidence.observed_loss / mean
            multiple = f"{factor:.4g} times {definition.text}"
            fault = f"{explanation.fault} ({multiple})" if definition.has_other_targets else multiple
            return Explanation(definition, factor, fault, fit.scale)
    return None


def _explain_value(evidence: Evidence, limit: float) -> Explanation | None:
    """Return the multiple of a mean that has the loss's value, although its gradients differ; None if there is none."""
    for explanation in _iter_faults(evidence):
        value = compute_loss(evidence, explanation.definition) * explanation.factor
        if explanation.factor != 1.0 and is_near(value, evidence.observed_loss, limit):
            return explanation
    return None


def _explain_backwards(evidence: Evidence) -> Explanation | None:
    """Return the mean with each token's predecessor as its target, if it is by far nearer than the documented one.

    It is never exact in padded rows: the last token is then the target of padding, which no document explains.
    """
    mean, backwards = documented(evidence)[0], Definition("step_tokens", shift=-1)
    right, wrong = [fit_gradients(evidence, definition) for definition in (mean, backwards)]
    if right is None or wrong is None or wrong.error > min(BACKWARDS_ERROR, right.error / FAR):
        return None
    fault = "each token is trained to predict the one before it: labels are shifted backwards"
    return Explanation(backwards, 1.0, fault, wrong.scale)


def _explain_moved(evidence: Evidence, slack: float) -> Explanation | None:
    """Return the mean over targets one token off that has the step's gradients; None if there is none."""
    for reading, fault in iter_moved_targets(evidence):
        for name in dict.fromkeys((documented(evidence)[0].normalisation, "step_tokens", "batch_tokens")):
            definition = Definition(name)
            fit, mean = fit_gradients(reading, definition), compute_loss(reading, definition)
            if fit is not None and fit.error <= slack and mean:
                factor = evidence.observed_loss / mean
                multiple = f" ({factor:.4g} times {definition.text})" if abs(factor - 1.0) > SCALE_LIMIT else ""
                return Explanation(definition, factor, f"{fault}{multiple}", fit.scale, reading)
    return None


def iter_moved_targets(evidence: Evidence) -> Iterator[tuple[Evidence, str]]:
    """Yield the step with additional or missing targets, each with the resulting fault, if no label decides.

    A mask of the learned tokens must be shifted with the logits once; some trainers shift it twice, or not at all.
    """
    targets = evidence.step.objective.targets
    if evidence.step.labels_enter or targets in FREE:
        return
    if targets == "all":
        yield replace(evidence, step=replace(evidence.step, kept=NO_END)), KEPT[NO_END].replace("answer", "document")
        return
    for (moved, narrowed), text in MOVED.items():
        reading = replace(evidence, step=replace(evidence.step, moved=moved, narrowed=narrowed))
        yield reading, text.replace("response", "answer")
    for kept, text in KEPT.items():
        yield replace(evidence, step=replace(evidence.step, kept=kept)), text


def _iter_faults(evidence: Evidence) -> Iterator[Explanation]:
    """Yield the loss with other definitions, the simplest first."""
    for name, text in NORMALISATION_TEXTS.items():
        yield Explanation(Definition(name), 1.0, text)
    yield from iter_slice_faults(evidence)
    names: tuple[Normalisation, ...] = ("step_tokens", "batch_tokens", "row_tokens")
    objective = evidence.step.objective
    means = dict.fromkeys((*(objective.normalisations if objective.is_documented else ()), *names))
    for factor in dict.fromkeys(list_factors(evidence).values()):
        text = name_factor(evidence, factor)
        for name in means:
            if factor != 1.0:
                yield Explanation(Definition(name), factor, f"{text} ({NORMALISATION_TEXTS[name]})")
    for name in names[:2]:
        after_next, itself = Definition(name, shift=2), Definition(name, shift=0)
        yield Explanation(
            after_next, 1.0, "each token is trained to predict the one after the next: labels are shifted twice"
        )
        yield Explanation(itself, 1.0, "each token is trained to predict itself: labels are not shifted")
        yield Explanation(Definition(name, every=True), 1.0, "every token is a target, including prompts and markup")
    targets, ranks = float(sum(evidence.count_targets())), len(evidence.step.ranks)
    yield Explanation(Definition("step_tokens"), targets, "the sum over target tokens, not their mean")
    yield Explanation(Definition("step_tokens"), targets / ranks, "the sum over target tokens, not their mean")


def iter_slice_faults(evidence: Evidence) -> Iterator[Explanation]:
    """Yield faults of labels and means if ranks hold slices of a row."""
    if all(call.places is None for call in evidence.step.calls):
        return
    lost = "labels are shifted within each rank's slice: its last token has no target"
    rolled = "labels are shifted within each rank's slice: its last token is trained to predict its first"
    names: tuple[Normalisation, ...] = ("step_tokens", "batch_tokens")
    for name in names:
        yield Explanation(Definition(name, sliced=Sliced("lost")), 1.0, lost)
        yield Explanation(Definition(name, sliced=Sliced("rolled")), 1.0, rolled)
        yield Explanation(Definition(name, sliced=Sliced("misplaced")), 1.0, rolled)
        alone = Definition(name, by_rank=True)
        yield Explanation(alone, 1.0, alone.text)
        own = Definition(name, sliced=Sliced("lost"), by_rank=True)
        yield Explanation(own, 1.0, f"{lost}, and the loss is {own.text}")


def settle_targets(evidence: Evidence) -> Evidence:
    """Return the evidence with the targets implied by its loss and gradients, if labels did not decide them.

    If hidden states differ, no reading explains the loss, which is then not judged.
    """
    if evidence.differs:
        return evidence
    readings = [replace(evidence, step=step) for step in evidence.step.list_readings()]
    if len(readings) == 1:
        return evidence
    explanations = [(explain_loss(reading), reading) for reading in readings]
    right = [reading for explanation, reading in explanations if explanation is not None and not explanation.fault]
    named = [reading for explanation, reading in explanations if explanation is not None]
    regularised = (reading for reading in readings if find_own_regulariser(reading) is not None)
    return next(iter((*right, *named)), None) or next(regularised, evidence)
