"""Checks that the loss falls, but not below the possible minimum; for rewarded responses, that −log p falls."""

import math
from collections.abc import Iterator, Sequence

import torch

from attncheck.core.results.smoke import CheckResult, Step
from attncheck.rehearsal.worker.checks.update import find_outside_changes
from attncheck.rehearsal.worker.definitions import Explanation
from attncheck.rehearsal.worker.evidence import SAME_LOSS, Evidence
from attncheck.rehearsal.worker.explanations import explain_loss
from attncheck.rehearsal.worker.policy import is_negated
from attncheck.rehearsal.worker.records import RankRecord
from attncheck.rehearsal.worker.rollouts import has_log_probabilities, list_means
from attncheck.smoke.worker.data.language import language_entropy

MIN_STEPS = 20  # fewer steps give no verdict on learning
LAST_STEPS = 5
FALL = 0.9  # the last losses must be below this share of the first
GROWTH = 1.0  # difference in nats per token that distinguishes rewarded responses from others
OFFSET = 0.1  # relative difference of the multiples of a mean that a loss and its gradients are
NEAR_ONE = 0.01  # the loss is a mean in nats per token, and not a multiple of one
UNJUDGED = "not judged: whether it learns, because the weights are already trained, at the launch's learning rate"
LOG_2 = math.log(2.0)  # a preference's loss if both sides are equally likely
ALIKE = "each step has the same loss, {:.4g}, as if the reference has the weights that train{}"
UNKNOWN = "not judged: whether the loss is impossibly low, because the entropy of your data is unknown"
CERTAIN = 10.0  # times the required fall: first updates promise more than later ones achieve (Adagrad)
LEARNING_RATE = 1e-3  # at this rate a small model with random weights learns with any Adam-like optimiser
MARGIN = 0.12  # nats below the floor that chance explains


def run(evidence: Evidence) -> CheckResult:
    """Judge the losses of all steps."""
    if evidence.step.objective.policy is not None:
        return _judge_rewarded(evidence)
    losses = [sum(sum(rank) for rank in step.losses) / max(len(step.losses), 1) for step in evidence.steps]
    steps = tuple(Step(loss, 0.0, 0.0, 0) for loss in losses)
    explanation = explain_loss(evidence)
    is_documented = evidence.step.objective.is_documented and not evidence.is_own_script
    is_mean = (explanation is not None or is_documented) and (
        explanation is None or abs(explanation.factor - 1.0) < NEAR_ONE
    )
    is_of_pairs = evidence.step.objective.preference is not None
    # Another multiple of the mean has no known floor, the loss of pairs no entropy.
    floor = _floor(evidence) if is_mean and not is_of_pairs else 0.0
    is_trained = evidence.full_model  # already: its losses must only be finite, and not below the possible minimum
    bound = FALL * losses[0] if losses and not is_trained else 0.0
    tokens = [sum(len(row) for row in step.rows) for step in evidence.steps]
    failure = "the margin between chosen and rejected answers does not grow" if is_of_pairs else "it does not learn"
    counts = [1] * len(losses) if is_mean or is_of_pairs else tokens
    is_partial = (
        explanation is None
        or (bool(evidence.others) and abs(explanation.factor) < 1 - NEAR_ONE)
        or _has_offset(explanation)
    )
    is_distilled = evidence.is_own_script and evidence.has_own_loss and bool(evidence.others)  # its own loss may grow
    is_open = is_partial and not evidence.step.objective.is_documented
    is_unknown = (is_open or is_distilled) and not is_of_pairs
    slow = "unknown: the definition of the loss" if is_unknown else _explain_slowness(evidence, losses)
    preference = evidence.step.objective.preference
    if preference is not None and not preference.is_paired:
        slow = "not judged: the loss on answers depends on how much other tokens change"
    violations = (
        *_find_unloaded(evidence),
        *_find_alike(evidence, losses),
    ) or tuple(
        _find_impossible(losses, floor)
        if slow or is_trained
        else _find_violations(losses, floor, bound, counts, failure)
    )
    if evidence.unstepped:
        violations = (f"{evidence.unstepped} losses were differentiated, but no optimiser took a step",)
    if slow and not (violations or is_trained):
        return CheckResult("learning", "skipped", slow, steps=steps)
    if len(losses) < (1 if is_trained else MIN_STEPS) and not violations:
        return CheckResult("learning", "skipped", f"{len(losses)} steps were taken, too few to judge", steps=steps)
    if violations:
        is_still = evidence.steps and all(step.rate == 0 for step in evidence.steps)
        still = (f"the learning rate is 0 in all {len(losses)} steps",) if is_still else ()
        violations = (*still, *violations, *find_outside_changes(evidence.taken))
    notes = (*([UNJUDGED] if is_trained else []), *([UNKNOWN] if evidence.step.index.is_own else []))
    return CheckResult("learning", violations=violations, notes=notes, steps=steps, floor=floor, bound=bound)


def _has_offset(explanation: Explanation) -> bool:
    """Return whether a loss has the gradients of a mean but another value, as KTO's 1 - sigmoid: its floor is not 0."""
    factor, scale = explanation.factor, explanation.scale
    return scale is not None and abs(scale - factor) > OFFSET * abs(factor)


def _find_unloaded(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the script loads a checkpoint, of which its model takes nothing."""
    yield from evidence.taken[0].code.get("unloaded", ()) if evidence.taken else ()


def _find_alike(evidence: Evidence, losses: Sequence[float]) -> Iterator[str]:
    """Yield a line if a loss by a reference keeps its first value, although the weights change."""
    preference, taken = evidence.step.objective.preference, evidence.taken
    is_known = preference is not None and preference.has_reference
    is_same = len(losses) >= LAST_STEPS and max(losses) - min(losses) < SAME_LOSS
    if not is_same or not (is_known or abs(losses[0] - LOG_2) < SAME_LOSS):
        return
    pairs = ((taken[0].weights[name], value) for name, value in taken[-1].weights.items() if name in taken[0].weights)
    lines = taken[0].code.get("ungraded", ())
    if any(not torch.equal(*pair) for pair in pairs):
        yield ALIKE.format(losses[0], f": {lines[0]} calls them without gradients" if lines else "")


def _explain_slowness(evidence: Evidence, losses: list[float]) -> str:
    """Return why the launch's optimiser and learning rate may not lower the loss in so few steps, "" if they must.

    To first order a step lowers the loss by its gradients times its update; later steps do so in proportion to their
    rates.
    """
    rates = [step.rate for step in evidence.steps]
    known = [rate for rate in rates if rate is not None]
    if not known or not any(known) or not losses:
        return ""
    falls = [(_predict_fall(record), rate) for record, rate in zip(evidence.taken, rates) if rate]
    seen = [fall / rate for fall, rate in falls if fall is not None and rate]
    if not seen:
        return "" if max(known) >= LEARNING_RATE else f"not known: at a rate of {max(known):.2g} it learns slowly"
    fall = min(seen) * sum(known)
    if fall >= CERTAIN * (1 - FALL) * abs(losses[0]):
        return ""
    return (
        f"not known: at rates up to {max(known):.2g} the first updates suggest that the loss "
        f"falls by {fall:.2g} in {len(losses)} steps, too little to judge"
    )


def _predict_fall(record: RankRecord) -> float | None:
    """Return the first-order decrease of the loss by the updates of a step; None if they were not recorded."""
    gradients = {**record.gradients, **record.backward}
    gains = [
        float((gradient.double() * (update["weights"][name].double() - after.double())).sum())
        for update in record.updates
        for name, after in update.get("after", {}).items()
        if torch.is_tensor(after) and torch.is_tensor(gradient := gradients.get(name)) and gradient.shape == after.shape
    ]
    return max(sum(gains), 0.0) if gains else None


def _judge_rewarded(evidence: Evidence) -> CheckResult:
    """Judge −log p of rewarded responses, in nats per token, over the steps.

    It may rise if as many are punished, and theirs rises faster.
    """
    if not has_log_probabilities(evidence):
        return CheckResult("learning", "skipped", "unknown: the log-probabilities that the script's own loss computes")
    sign = -1 if evidence.replaces_rewards and is_negated(explain_loss(evidence)) else 1  # the loss check warns
    rewarded = list_means(evidence, sign)
    losses, margins = [-mean for mean in rewarded], [a - b for a, b in zip(rewarded, list_means(evidence, -sign))]
    steps = tuple(Step(loss, 0.0, 0.0, 0) for loss in losses)
    floor, bound = _floor(evidence), FALL * losses[0]
    if sum(margins[-LAST_STEPS:]) / LAST_STEPS > margins[0] + GROWTH:
        faults = _find_impossible(losses, floor)
    else:
        faults = _find_violations(losses, floor, bound, [1] * len(losses), "they do not become more likely")
    violations = tuple(text.replace("the loss", "-log p of the rewarded responses", 1) for text in faults)
    if len(losses) < MIN_STEPS and not violations:
        return CheckResult("learning", "skipped", f"{len(losses)} steps were taken, too few to judge", steps=steps)
    return CheckResult("learning", violations=violations, steps=steps, floor=floor, bound=bound)


def _floor(evidence: Evidence) -> float:
    """Return the lowest possible mean loss on these targets: 0 for markup, the entropy of the language for words."""
    if evidence.step.index.is_own or evidence.step.objective.token_loss.by_probability:
        return 0.0  # without a known entropy
    words = targets = 0
    is_word = evidence.step.index.vocabulary.is_word
    for piece in evidence.judged_pieces:
        for token, is_target in zip(piece.tokens[1:], piece.is_target.tolist(), strict=True):
            targets += is_target
            words += is_target and is_word(token)
    return language_entropy() * words / targets if targets else 0.0


def _find_impossible(losses: list[float], floor: float) -> Iterator[str]:
    """Yield a line if a loss is not finite, or if the last ones are below the floor, if known (0: unknown)."""
    bad = next((number for number, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        yield f"the loss is {'NaN' if math.isnan(losses[bad]) else 'infinite'} at step {bad + 1}"
        return
    last = sum(losses[-LAST_STEPS:]) / LAST_STEPS
    if floor and len(losses) >= LAST_STEPS and last < floor - MARGIN:
        why = "the model sees future tokens, or not all targets count"
        yield (
            f"the loss falls to {last:.3f}, below the {floor:.3f} that the documents' entropy allows: "
            f"{why if last >= 0 else 'a term has the wrong sign, such as a divergence from another model'}"
        )


def _find_violations(losses: list[float], floor: float, bound: float, tokens: list[int], failure: str) -> Iterator[str]:
    """Yield faults of losses; `tokens` are the steps' tokens if losses may be sums over them, otherwise ones."""
    yield from _find_impossible(losses, floor)
    if len(losses) < MIN_STEPS or not all(map(math.isfinite, losses)):
        return
    last = sum(losses[-LAST_STEPS:]) / LAST_STEPS
    shares = [loss / max(count, 1) for loss, count in zip(losses, tokens)]
    if last > bound and sum(shares[-LAST_STEPS:]) / LAST_STEPS > FALL * shares[0]:
        yield f"the loss is {last:.2f} after {len(losses)} steps, {losses[0]:.2f} at first: {failure}"
