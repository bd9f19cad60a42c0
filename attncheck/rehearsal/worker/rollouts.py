"""Compares a driver's rollouts with the model's inputs, and their log-probabilities with the reference."""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.core.results.smoke import Measure
from attncheck.rehearsal.worker.evidence import ROUNDING_MULTIPLE, SAMPLED_PIECES, Evidence
from attncheck.rehearsal.worker.step import Piece

FP32_NATS = 1e-3  # error of a token's log-probability in float32


def find_lost_rollouts(evidence: Evidence) -> Iterator[str]:
    """Yield the first step's rollouts that are not passed to the model exactly once and complete."""
    if not evidence.rollouts:
        return
    words = evidence.step.index.words
    seen: Counter[int] = Counter()
    for piece in evidence.step.pieces:
        number = piece.segment.document
        seen[number] += number >= 0 and piece.segment.words == len(words[number])
    handed = [rollout.document for rollout in evidence.rollouts[0]]
    for text, numbers in (
        ("were not passed to the model completely", [number for number in handed if not seen[number]]),
        ("were passed to the model more than once", [number for number in handed if seen[number] > 1]),
    ):
        if numbers:
            yield (f"{len(numbers)} of {len(handed)} rollouts of the step {text}, the first document {numbers[0]}")


def has_log_probabilities(evidence: Evidence) -> bool:
    """Return whether the framework's own log-probabilities are known; a script's own loss computes others."""
    return any(rollout.log_probabilities for rollout in evidence.rollouts[0])


def measure_log_probabilities(evidence: Evidence) -> Measure:
    """Return the error, in nats, of the framework's own log-probabilities before the step.

    For each response it is the root mean square over its tokens.
    """
    given = {rollout.document: rollout.log_probabilities for rollout in evidence.rollouts[0]}
    errors = [(_error(evidence, piece, given[number]), piece) for piece, number in _iter_rollouts(evidence, given)]
    worst, piece = max(errors, key=lambda item: item[0])
    where = f"worst in document {piece.segment.document}, {piece.place}"
    return Measure("log p of a response before the step, nats per token", worst, _limit(evidence), where)


def find_shifted_log_probabilities(evidence: Evidence) -> Iterator[str]:
    """Yield a line if the framework's own log-probabilities belong to neighbouring tokens: one token off."""
    given = {rollout.document: rollout.log_probabilities for rollout in evidence.rollouts[0]}
    pairs = [(piece, given[number]) for piece, number in _iter_rollouts(evidence, given)]
    for shift, text in ((1, "after"), (-1, "before")):
        errors = [_error(evidence, piece, values, shift) for piece, values in pairs]
        if errors and max(errors) <= _limit(evidence):
            yield (
                "the log-probabilities of the responses before the step are one token off: each token has the value "
                f"of the token {text} it"
            )


def list_group_advantages(evidence: Evidence) -> list[tuple[float, float]]:
    """Return the advantages of each prompt's rewarded response and of its other one, which has no reward.

    The two responses of a prompt are neighbouring documents, if a trainer computes advantages from rewards.
    """
    given = {rollout.document: rollout.advantage for rollout in evidence.rollouts[0]}
    documents = evidence.step.index.documents
    return [
        (given[number], given[number + 1])
        for number in given
        if number % 2 == 0 and number + 1 in given and documents[number][0] == documents[number + 1][0]
    ]


def _iter_rollouts(evidence: Evidence, given: dict[int, tuple[float, ...]]) -> Iterator[tuple[Piece, int]]:
    for piece in evidence.judged_pieces:
        if piece.segment.document in given:
            yield piece, piece.segment.document


def _error(evidence: Evidence, piece: Piece, given: tuple[float, ...], shift: int = 0) -> float:
    """Return the difference over the tokens of a response; infinity if their number differs.

    `shift` compares with neighbouring tokens.
    """
    labels, counts = piece.shift_labels(1)
    expected = -evidence.describe(piece).nll(labels)[counts]
    if len(expected) != len(given):
        return float("inf")
    actual = torch.tensor(given)
    if shift:
        expected, actual = (expected[1:], actual[:-1]) if shift > 0 else (expected[:-1], actual[1:])
    return _root_mean_square(expected - actual)


def _root_mean_square(differences: Tensor) -> float:
    return float(differences.double().square().mean().sqrt().nan_to_num(1e30))


def _limit(evidence: Evidence) -> float:
    """Return the largest allowed difference: several times eager attention's rounding error."""
    if evidence.rounded is None:
        return FP32_NATS
    errors = []
    for piece in evidence.judged_pieces[:SAMPLED_PIECES]:
        labels, counts = piece.shift_labels(1)
        difference = evidence.rounded.describe(piece.tokens).nll(labels) - evidence.describe(piece).nll(labels)
        errors.append(_root_mean_square(difference[counts]))
    return max(FP32_NATS, ROUNDING_MULTIPLE * max(errors, default=0.0))


def list_means(evidence: Evidence, sign: int) -> list[float]:
    """Return, for each step, the mean log-probability of a token of the responses with this sign of the advantage."""
    means = []
    for rollouts in evidence.rollouts:
        values = [value for rollout in rollouts if rollout.advantage * sign > 0 for value in rollout.log_probabilities]
        means.append(sum(values) / max(len(values), 1))
    return means
