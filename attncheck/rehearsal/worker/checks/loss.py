"""Compares the differentiated loss with the framework's documented mean, computed from each document's loss."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from attncheck.core.rehearsal import NORMALISATION_TEXTS, Normalisation
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.rehearsal.worker.changes import compare
from attncheck.rehearsal.worker.definitions import Explanation, compute_loss, is_near, is_scaled
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.explanations import documented, explain_loss, find_own_regulariser, loss_limit
from attncheck.rehearsal.worker.norms import read_stepped
from attncheck.rehearsal.worker.pairs import is_chosen
from attncheck.rehearsal.worker.policy import is_negated, measure_magnitude
from attncheck.rehearsal.worker.rollouts import (
    find_shifted_log_probabilities,
    has_log_probabilities,
    list_group_advantages,
    measure_log_probabilities,
)

NEAR_ONE = 0.01
MEANT: tuple[Normalisation, ...] = ("row_tokens", "document_tokens")  # a loss that divides by the lengths of rows
REVERSED = (
    "rewarded responses become less likely: this is wrong unless your reward functions return a cost; "
    "synthetic rewards replace them here"
)
WRONG_ADVANTAGES = (
    "prompts give their rewarded response no larger advantage than the other one: the advantages are those of other "
    "responses, or are not computed within each prompt's own group"
)
# Of rewards 1 and 0 of a prompt's two responses, by TRL's `scale_rewards`: divided by their standard deviation, or not
# (1.16.0 trainer/grpo_config.py; before 0.22 it is a bool).
ADVANTAGES = {**dict.fromkeys(("group", "True"), 0.5**0.5), **dict.fromkeys(("none", "False"), 0.5)}
SCALING = (
    "two responses of a prompt, with rewards 1 and 0, have the advantages {}, which should be {:.3g} and its negative "
    "with scale_rewards={}"
)
SCALED = 0.02  # of an advantage
MIXED_GROUPS = (
    "no prompt of the step has two responses: the rows of a group are not one prompt's, so advantages compare prompts"
)
PREDICTED: Mapping[Normalisation, Normalisation] = {"step_labels": "step_tokens", "rank_labels": "rank_tokens"}
COUNTED = 0.05  # relative, of a loss
TRAINED = 0.25  # mean gradient of a trained prediction at padding, as a share of other tokens'
SMALL = 0.05  # share of the mean that is added to it, as by a regulariser


def run(evidence: Evidence) -> CheckResult:
    """Compare the step's loss with the documented one; if it differs, name it."""
    given = tuple(text for record in evidence.taken[-1:] for text in record.code.get("probabilities", ()))
    if given:
        return CheckResult("loss", violations=given)
    has_policy = evidence.step.objective.policy is not None and bool(evidence.rollouts)
    pairs = list_group_advantages(evidence) if has_policy else []
    is_reversed = bool(pairs) and all(rewarded < other for rewarded, other in pairs)
    if has_policy and not is_reversed and (faults := tuple(_find_wrong_groups(evidence, pairs))):
        return CheckResult("loss", violations=faults)
    result = _compare_loss(evidence)
    if not has_policy or result.outcome != "ok":
        return result
    warnings = (REVERSED,) * is_reversed + result.warnings
    if not has_log_probabilities(evidence):
        return replace(result, warnings=warnings)
    shifted = tuple(find_shifted_log_probabilities(evidence))
    measures = (*result.measures, measure_log_probabilities(evidence))
    return replace(result, measures=measures, warnings=warnings, violations=(*shifted, *result.violations))


def _find_wrong_groups(evidence: Evidence, pairs: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield a line if advantages are not those of each prompt's own two responses, of which one is rewarded."""
    if wrong := sum(rewarded <= other for rewarded, other in pairs):
        yield f"{wrong} of {len(pairs)} {WRONG_ADVANTAGES}"
    elif evidence.replaces_rewards and not pairs and len(evidence.rollouts[0]) > 2:
        # A script may choose some responses of each group; a prompt's first one is always the rewarded one.
        yield from [MIXED_GROUPS] * all(rollout.document % 2 == 0 for rollout in evidence.rollouts[0])
    elif pairs:
        scaling = [own for record in evidence.taken for own in record.code.get("scaling", ())][:1]
        expected = next((ADVANTAGES[own] for own in scaling if own in ADVANTAGES), 0.0)
        if expected and all(max(abs(own - expected), abs(other + expected)) > SCALED for own, other in pairs):
            yield SCALING.format("{:.3g} and {:.3g}".format(*pairs[0]), expected, scaling[0])


def _find_counted(evidence: Evidence, explanation: Explanation) -> Iterator[str]:
    """Yield a line if a loss is much smaller because labels count that nothing predicts, as in rows of few tokens."""
    name = explanation.definition.normalisation
    if name in PREDICTED:
        mean = compute_loss(evidence, replace(explanation.definition, normalisation=PREDICTED[name]))
        share = 1 - compute_loss(evidence, explanation.definition) / mean
        if share > COUNTED:
            yield (
                f"the loss and the gradients are {share:.0%} smaller than the mean over predicted tokens: the first "
                "label of each row counts too, which nothing predicts (transformers 5.9.0 counts it, 5.15.0 does not)"
            )


def _compare_loss(evidence: Evidence) -> CheckResult:
    observed, explanation = evidence.observed_loss, explain_loss(evidence)
    means = [(compute_loss(evidence, definition), definition) for definition in documented(evidence)]
    expected, definition = min(means, key=lambda item: abs(item[0] - observed))
    magnitude = abs(expected) if evidence.step.objective.policy is None else measure_magnitude(evidence, definition)
    error = abs(observed - expected) / max(magnitude, 1e-12)
    name = f"loss of the first step: {observed:.5g}, against {definition.text}, {expected:.5g}"
    if explanation is not None and not explanation.fault:
        notes = [f"the loss is {explanation.definition.text}"]
        if abs(explanation.factor - 1) > NEAR_ONE:
            notes = [
                (
                    f"the differentiated loss, {observed:.5g}, is {explanation.factor:.4g} times "
                    f"{definition.text}; the gradients of the step are those of "
                    f"{definition.text if definition.name else 'the mean itself'}"
                )
            ]
            return CheckResult("loss", notes=tuple(notes))
        if explanation.scale is not None and evidence.has_own_loss and error > loss_limit(evidence):
            notes += [
                f"{observed - expected:+.2g} is added to the loss, with less effect on the gradients than rounding"
            ]
            return CheckResult("loss", notes=tuple(notes))
        measures = (Measure(name, error, loss_limit(evidence)),)
        return CheckResult(
            "loss", measures=measures, warnings=(*_find_counted(evidence, explanation),), notes=(*notes,)
        )
    measure = Measure(name, error, loss_limit(evidence))
    ranks = len(evidence.step.ranks)
    above = [value + math.log(ranks) for value, _ in means]
    limit = loss_limit(evidence)
    if explanation is None and ranks > 1 and any(is_near(value, observed, limit) for value in above):
        violation = (
            f"the loss is {observed:.5g}, log {ranks} more than it should be: each logit counts {ranks} times, "
            f"because each rank's full-vocabulary logits are treated as a part of the vocabulary"
        )
        return CheckResult("loss", measures=(measure,), violations=(violation,))
    regularised = find_own_regulariser(evidence) if explanation is None else None
    if regularised is not None:
        name = f"loss of the first step: {observed:.5g}, against {regularised.text}, {regularised.value:.5g}"
        error = abs(observed - regularised.value) / max(abs(regularised.value), 1e-12)
        measure = Measure(name, error, loss_limit(evidence))
        return CheckResult("loss", measures=(measure,), notes=(f"the loss is {regularised.text}",))
    trained = _find_trained_padding(evidence) if explanation is None else ""
    if trained:
        return CheckResult("loss", violations=(f"the loss is {observed:.5g}: {trained}",))
    if explanation is None and evidence.is_own_script and error < SMALL and evidence.has_own_loss:
        reason = f"to {definition.text}, {expected:.6g}, {observed - expected:+.2g} is added from an unknown source"
        return CheckResult("loss", "skipped", reason)
    code = evidence.step.ranks[0].code
    is_weighted = explanation is not None and abs(explanation.factor) < 1 - NEAR_ONE  # besides the other's part
    if (explanation is None or is_weighted) and evidence.is_own_script and evidence.has_own_loss and evidence.others:
        return CheckResult(
            "loss", "skipped", f"unknown: what another model, {evidence.others[0]}, adds to {definition.text}"
        )
    reversed_scores = _find_reversed_scores(evidence) if explanation is None else ""
    if reversed_scores:
        return CheckResult("loss", warnings=(reversed_scores,))
    if not evidence.step.objective.is_documented and (
        explanation is None or not explanation.definition.has_other_targets
    ):
        return _tell_own_loss(evidence, explanation)
    if explanation is not None and evidence.replaces_rewards and is_negated(explanation):
        return CheckResult("loss", warnings=(REVERSED,))
    is_own = "trainer" in code and any("compute_loss" in function for function in code.get("loss", ()))
    if is_own and explanation is not None and explanation.fault in (NORMALISATION_TEXTS[name] for name in MEANT):
        return CheckResult(
            "loss", warnings=(f"the script's own loss is {explanation.fault}; the framework's is {definition.text}",)
        )
    if explanation is not None:
        violation = f"the loss is {observed:.5g}: {explanation.fault}; it should be {expected:.5g}"
        if definition.value is not None and not measure.beyond:
            violation = (
                f"{explanation.fault}, as the gradients of the first step show; its loss, {observed:.5g}, is the same "
                "either way"
            )
        return CheckResult("loss", measures=(measure,), violations=(violation,))
    if evidence.is_own_script and not evidence.step.labels_enter:
        reason = (
            f"labels are not passed to the model, and the loss, {observed:.5g}, is not a mean over "
            "whole documents or answers: the script chooses its own target tokens"
        )
        return CheckResult("loss", "skipped", reason)
    return CheckResult("loss", measures=(measure,))


def _find_trained_padding(evidence: Evidence) -> str:
    """Return the fault of a loss whose gradients at padding are as large as those at tokens, "" without one.

    A regulariser over all positions has smaller ones. The padding before a row's first token predicts that token.
    """
    padded, others = [], []
    for call in evidence.step.calls:
        mask = call.tensors.get("attention_mask")
        if call.pull is not None and mask is not None and mask.shape == call.pull.shape[:2] == call.input_ids.shape:
            pull, following = call.pull.norm(dim=-1), torch.nn.functional.pad(mask[:, 1:], (0, 1))
            padded += pull[(mask == 0) & (following == 0)].tolist()
            others += pull[mask != 0].tolist()
    trained, counted = list(filter(None, padded)), list(filter(None, others))
    ratio = fmean(trained) / fmean(counted) if trained and counted else 0.0
    if ratio < TRAINED:
        return ""
    return (
        f"{len(trained)} predictions within padding are trained, with gradients {ratio:.2g} times those of other "
        "tokens: the loss counts padding"
    )


def _find_reversed_scores(evidence: Evidence) -> str:
    """Return a line about scores that rise for rejected answers or fall for chosen ones, "" without any.

    It may be meant: the script may train a model of costs, or scores near a number. transformers 5.17.0
    modeling_layers.py (`GenericForSequenceClassification`: the head is `score`).
    """
    head, documents = evidence.step.ranks[0].weights.get("score.weight"), evidence.step.index.documents
    slopes: list[tuple[bool, float]] = []
    sides = {(id(piece.call), piece.segment.document) for piece in evidence.judged_pieces}
    for piece in evidence.judged_pieces:
        number, pull = piece.segment.document, piece.call.pull
        if head is None or len(head) != 1 or pull is None or pull.shape[:2] != piece.call.input_ids.shape:
            break
        is_paired = (id(piece.call), number ^ 1) in sides  # otherwise the script pairs other rows
        if is_paired and documents[number][0] == documents[min(number ^ 1, len(documents) - 1)][0]:
            own = pull[piece.row, piece.segment.start : piece.segment.stop].sum(0)
            slopes.append((is_chosen(number), float(own @ head[0].float())))
    slopes = [(chosen, slope) for chosen, slope in slopes if slope]  # a margin may be wide enough
    wrong = [slope for chosen, slope in slopes if chosen == (slope > 0)]
    text = "the loss lowers the scores of chosen answers and raises those of rejected ones in"
    # a term that keeps scores small turns a few
    return f"{text} {len(wrong)} of {len(slopes)} answers" if wrong and 2 * len(wrong) >= len(slopes) else ""


def _tell_own_loss(evidence: Evidence, explanation: Explanation | None) -> CheckResult:
    """Return a description of an undocumented loss, because its author may intend a factor or a different loss."""
    observed = evidence.observed_loss
    if explanation is None:
        own = "is not a mean over target tokens, but the script's own"
        own = (
            "is not known: the reference isolates documents, which attend to each other here"
            if evidence.differs
            else own
        )
        return CheckResult("loss", "skipped", f"the loss, {observed:.5g}, {own}")
    record, ranks = evidence.step.ranks[0], len(evidence.step.ranks)  # an optimiser may divide by the factor itself
    factor = (explanation.scale or 1.0) * compare(record.gradients, read_stepped(record), record.gradients).usual
    if is_scaled(factor) and factor > sum(evidence.count_targets()):
        return CheckResult(
            "loss",
            violations=(
                f"the gradients are {explanation.fault}: a GradScaler's factor is on them at the step, because the "
                "script calls optimizer.step(), not scaler.step(optimizer)",
            ),
        )
    return CheckResult(
        "loss",
        warnings=(
            f"the loss is {observed:.5g}: {explanation.fault}"
            + " (one over the number of ranks, by which the gradients are divided again)"
            * (ranks > 1 and is_near(1.0, explanation.factor * ranks, NEAR_ONE)),
        ),
    )
