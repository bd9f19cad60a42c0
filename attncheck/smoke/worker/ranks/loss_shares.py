"""Checks a step across ranks from logits to loss and back: labels, predicted tokens and the weight of each rank.

All of this is float32, here and in the step, so that no rounding hides a token. The loss's gradient at a token's logits
is (softmax - one-hot label) / number of tokens, so it shows the label that the token was trained on.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attncheck.core.results.smoke import Measure
from attncheck.smoke.worker.ranks.sharded import Driver, PackedRow, ShardedStep
from attncheck.smoke.worker.testbed import FP32_LIMIT, TINY

MIN_TRAINED_WEIGHT = 1e-6  # a token with a gradient above this share of its weight in the loss was trained on
MAX_ERROR = 1e30  # represents NaN and infinity
WEIGHT_TOLERANCE = 10 * FP32_LIMIT  # of a rank's weight, which is a ratio of two sums


def measure_loss(step: ShardedStep, rows: Sequence[PackedRow]) -> Iterator[Measure]:
    """Yield the errors of the loss across ranks and of its gradient, both against the ranks' own logits."""
    predicted_tokens = count_predicted_tokens(rows)
    loss, squared_error, squared_norm = 0.0, 0.0, 0.0
    for row, logits, actual_gradient in zip(rows, step.padded_logits, step.logit_gradients):
        loss += float(token_losses(logits[: row.total_tokens], row.targets).sum()) / predicted_tokens
        expected_gradient = _logit_gradient(logits, row) / predicted_tokens
        squared_error += float((actual_gradient - expected_gradient).double().square().sum())
        squared_norm += float(expected_gradient.double().square().sum())
    where = "compared with the mean over the tokens, computed from the ranks' logits"
    yield Measure("the loss itself", clamp_error(abs(step.loss / loss - 1)), FP32_LIMIT, where)
    yield Measure(
        "the loss's gradient at the logits", clamp_error((squared_error / max(squared_norm, TINY)) ** 0.5), FP32_LIMIT
    )


def clamp_error(value: float) -> float:
    """Return an error, or MAX_ERROR if it is NaN or larger."""
    return value if value < MAX_ERROR else MAX_ERROR


def count_predicted_tokens(rows: Sequence[PackedRow]) -> int:
    """Return the number of tokens of the rows that have a target."""
    return sum(int((row.targets >= 0).sum()) for row in rows)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return minus the log-probability of each token's target, 0 for tokens without a target: (tokens,)."""
    log_probs = logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)
    return -log_probs * (targets >= 0)


def _logit_gradient(logits: Tensor, row: PackedRow) -> Tensor:
    """Return the gradient of the summed loss at the logits of a row and its padding: (total + padding, vocabulary)."""
    gradient = torch.zeros_like(logits)
    gradient[: row.total_tokens] = logits[: row.total_tokens].softmax(-1)
    has_target = row.targets >= 0
    positions = torch.arange(row.total_tokens, device=logits.device)[has_target]
    gradient[positions, row.targets[has_target]] -= 1.0
    gradient[: row.total_tokens] *= has_target[:, None]
    return gradient


def find_violations(step: ShardedStep, rows: Sequence[PackedRow], driver: Driver) -> Iterator[str]:
    """Yield the faults between logits and gradients: labels, counted or missing tokens, weights of ranks."""
    weights = []
    for number, (row, logits, actual_gradient) in enumerate(zip(rows, step.padded_logits, step.logit_gradients), 1):
        expected_gradient = _logit_gradient(logits, row) / count_predicted_tokens(rows)
        expected_norm, actual_norm = expected_gradient.norm(dim=-1), actual_gradient.norm(dim=-1)
        shard_tokens = len(logits) // driver.ranks
        targets = torch.cat([row.targets, row.targets.new_full((len(logits) - row.total_tokens,), -1)])
        threshold = MIN_TRAINED_WEIGHT / count_predicted_tokens(rows)
        trained_label = torch.where(actual_norm > threshold, actual_gradient.argmin(-1), -1)
        learnable = expected_norm > threshold  # otherwise the model is so sure of the label that its gradient vanishes
        for problem, tokens in (
            ("trained on a wrong label", (trained_label >= 0) & learnable & (trained_label != targets)),
            ("trained on without a target", (trained_label >= 0) & (targets < 0)),
            ("not trained on", (trained_label < 0) & learnable),
        ):
            if bool(tokens.any()):
                first = _describe_token(int(tokens.nonzero()[0]), shard_tokens, row)
                yield f"row {number} has {_format_token_count(int(tokens.sum()))} {problem}, first {first}"
        trained_right = (trained_label == targets) & learnable
        weights.append(
            [
                float(actual_norm[indices].sum() / expected_norm[indices].sum())
                for indices in _indices_by_rank(trained_right, shard_tokens)
                if len(indices)
            ]
        )
    yield from _find_weight_violations(weights, driver.ranks)


def _format_token_count(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _indices_by_rank(selected: Tensor, shard_tokens: int) -> Iterator[Tensor]:
    """Yield, for each rank, the indices of the selected tokens in its shard."""
    for start in range(0, len(selected), shard_tokens):
        yield start + selected[start : start + shard_tokens].nonzero()[:, 0]


def _find_weight_violations(weights: Sequence[Sequence[float]], ranks: int) -> Iterator[str]:
    """Yield the tokens that weigh too much or too little in the gradient, by row and rank."""
    flat = [weight for row_weights in weights for weight in row_weights]
    if not flat or max(abs(weight - 1) for weight in flat) <= WEIGHT_TOLERANCE:
        return
    if max(flat) - min(flat) <= WEIGHT_TOLERANCE * max(flat):
        times = f"1/{ranks} of" if abs(flat[0] * ranks - 1) <= WEIGHT_TOLERANCE else f"{flat[0]:.4g} times"
        yield f"gradients are {times} what they should be: the loss is scaled wrongly across ranks"
    else:
        by_row = "; ".join(
            f"row {number}: {_format_weights(row_weights)}" for number, row_weights in enumerate(weights, 1)
        )
        yield f"tokens have different weights in the loss, so it is not the mean over all tokens; by rank, {by_row}"


def _format_weights(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:.4g}" for weight in weights)


def _describe_token(token: int, shard_tokens: int, row: PackedRow) -> str:
    """Return the location of a token of a row: its index, its rank, and whether it is padding or its shard's last."""
    rank, within = divmod(token, shard_tokens)
    if token >= row.total_tokens:
        return f"padding on rank {rank}"
    return (
        f"token {token}, the last of rank {rank}'s shard"
        if within == shard_tokens - 1
        else f"token {token} on rank {rank}"
    )
