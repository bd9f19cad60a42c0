"""From logits to loss and back, over ranks: labels, tokens that count and the weight of each rank, exact or wrong.

All of it is float32, here and in the step, so that no rounding hides a token. The loss's gradient at a token's logits
is (softmax - one of its label) by the number of tokens: which label it was trained on can be read off it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attncheck.core.results.smoke import Measure
from attncheck.smoke.worker.ranks.sharded import Driver, Row, Step
from attncheck.smoke.worker.testbed import EXACT, TINY

TRAINED = 1e-6  # of a token's whole weight: a gradient above that says that the token was trained on
NOT_FINITE = 1e30
ROUNDED = 10 * EXACT  # of a rank's weight, which is a ratio of two sums


def measures(made: Step, rows: Sequence[Row]) -> Iterator[Measure]:
    """Yield loss and its gradient over ranks, both against the logits that the ranks computed."""
    tokens = count(rows)
    loss, error, size = 0.0, 0.0, 0.0
    for each, logits, pulled in zip(rows, made.logits, made.pulls):
        loss += float(losses(logits[: each.total], each.wanted).sum()) / tokens
        pull = _pull(logits, each) / tokens
        error += float((pulled - pull).double().square().sum())
        size += float(pull.double().square().sum())
    where = "against the mean over the tokens of what the ranks' logits say"
    yield Measure("loss by itself", finite(abs(made.loss / loss - 1)), EXACT, where)
    yield Measure("the loss's gradient at the logits", finite((error / max(size, TINY)) ** 0.5), EXACT)


def finite(value: float) -> float:
    """Return a value, 1e30 for a NaN and what is larger."""
    return value if value < NOT_FINITE else NOT_FINITE


def count(rows: Sequence[Row]) -> int:
    """Return how many tokens are predicted."""
    return sum(int((each.wanted >= 0).sum()) for each in rows)


def losses(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return minus the log-probability of what each token is to predict; 0 where that is nothing."""
    chosen = logits.gather(-1, wanted.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)
    return -chosen * (wanted >= 0)


def _pull(logits: Tensor, each: Row) -> Tensor:
    """Return the gradient of the summed loss at the logits of a row and its padding."""
    pull = torch.zeros_like(logits)
    pull[: each.total] = logits[: each.total].softmax(-1)
    kept = each.wanted >= 0
    places = torch.arange(each.total, device=logits.device)[kept]
    pull[places, each.wanted[kept]] -= 1.0
    pull[: each.total] *= kept[:, None]
    return pull


def violations(made: Step, rows: Sequence[Row], driver: Driver) -> Iterator[str]:
    """Yield what is wrong between logits and gradients: labels, tokens that count or do not, weights of ranks."""
    weights = []
    for number, (each, logits, pulled) in enumerate(zip(rows, made.logits, made.pulls), 1):
        pull = _pull(logits, each) / count(rows)
        right, strength = pull.norm(dim=-1), pulled.norm(dim=-1)
        size = len(logits) // driver.ranks
        wanted = torch.cat([each.wanted, each.wanted.new_full((len(logits) - each.total,), -1)])
        trained = torch.where(strength > TRAINED / count(rows), pulled.argmin(-1), -1)
        sure = right > TRAINED / count(rows)  # else the model is so certain of the label that there is nothing to learn
        for problem, places in (
            ("trained on another label", (trained >= 0) & sure & (trained != wanted)),
            ("trained on with nothing to predict", (trained >= 0) & (wanted < 0)),
            ("not trained on", (trained < 0) & sure),
        ):
            if bool(places.any()):
                first = _place(int(places.nonzero()[0]), size, each)
                yield f"row {number} has {_tokens(int(places.sum()))} {problem}, first {first}"
        same = (trained == wanted) & sure
        weights.append([float(strength[p].sum() / right[p].sum()) for p in _parts(same, size) if len(p)])
    yield from _weights(weights, driver.ranks)


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _parts(places: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the indices of the chosen places on each rank."""
    for start in range(0, len(places), size):
        yield start + places[start : start + size].nonzero()[:, 0]


def _weights(weights: Sequence[Sequence[float]], ranks: int) -> Iterator[str]:
    """Yield that tokens weigh more or less than they should in the gradient, by row and rank."""
    flat = [weight for each in weights for weight in each]
    if not flat or max(abs(weight - 1) for weight in flat) <= ROUNDED:
        return
    if max(flat) - min(flat) <= ROUNDED * max(flat):
        times = f"1/{ranks} of" if abs(flat[0] * ranks - 1) <= ROUNDED else f"{flat[0]:.4g} times"
        yield f"gradients are {times} what they should be: the loss is scaled wrongly over the ranks"
    else:
        said = "; ".join(f"row {number}: {_list(each)}" for number, each in enumerate(weights, 1))
        yield f"tokens do not weigh alike in the loss, which is not one mean over all of them; by rank, {said}"


def _list(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:.4g}" for weight in weights)


def _place(token: int, size: int, each: Row) -> str:
    """Return a token of a row in words."""
    rank, within = divmod(token, size)
    if token >= each.total:
        return f"padding on rank {rank}"
    return f"token {token}, the last of rank {rank}'s shard" if within == size - 1 else f"token {token} on rank {rank}"
