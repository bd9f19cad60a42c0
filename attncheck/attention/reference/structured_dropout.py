"""The structured probe of dropout: the kept share, the effect of the seed, and equal masks in all gradients.

With q = k = 0 each query gives its n keys equal weight. With unit vectors as v, out is a part of the dropout mask: kept
/ (n (1 - rate)). One call per v_head_dim keys, all with one seed, reads the whole mask. The same seed on the same
shapes must give the same mask; otherwise activation checkpointing recomputes a different network. A call on random
inputs with that seed is then compared with float64 attention under that mask, gradients included.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.dense import DenseAttention
from attncheck.attention.reference.rounding_noise import ETA, KAPPA
from attncheck.attention.reference.structured_common import (
    BackendCall,
    ProbeResult,
    cast_to_case,
    make_normal_inputs,
)
from attncheck.core.cases import Case

MAX_Z, MIN_VARIANCE = 7.0, 9.0  # of the number kept of a key, or by a query
LEAST_WEIGHT = {"bfloat16": 1e-30, "float16": 1e-6, "float32": 1e-30}  # that an output shows
MIN_WEIGHTS = 100  # with fewer visible keys in all, chance decides which are kept
MIN_KEYS = 8  # of an average query, whose gradients are judged
MEDIAN_CHI_SQUARE = 0.455  # one degree of freedom
DROPOUT_STEP = 1.0 / 256.0
MAX_NOISE, SCORE_ROUNDINGS = 6.0, 3.0  # eager rounds the product, its scaled value, and the sum with a bias
# As a share of a gradient's norm. An eager kernel in bfloat16 has 7e-3; a gradient without its mask is off by sqrt(p /
# (1 - p)).
MAX_RELATIVE_ERROR = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 1e-5}


def probe_dropout(case: Case, device: str, call: BackendCall) -> ProbeResult:
    """Read the masks of two seeds, check their statistics, and every output of a random call against the first."""
    normal = make_normal_inputs(replace(case, dropout=0.0), device)
    inputs = cast_to_case(normal, case)
    exact = DenseAttention.of(replace(inputs, q=0.0 * inputs.q, k=0.0 * inputs.k)).weights().float()

    def read_weights(start: int, seed: int) -> Tensor:
        return _read_weights(case, normal, call, exact, start, seed)

    weights = _read_all_weights(case, normal, call, exact)  # 0 or 1 / (1 - rate), and noise
    first_chunk = weights[..., : case.v_head_dim]
    other_chunk = read_weights(0, case.seed + 1)  # the next call has another seed than this one: a stale one shows
    torch.manual_seed(case.seed)
    outputs = call(inputs)
    readable = exact > LEAST_WEIGHT[case.dtype]
    violations, warnings = _judge_mask(case, readable, exact == 0.0, weights)
    has_many = int(readable[..., : case.v_head_dim].sum()) >= MIN_WEIGHTS
    if has_many and torch.equal(first_chunk, other_chunk):
        violations.append("two seeds drop the same keys")
    if not torch.equal(first_chunk, read_weights(0, case.seed)):
        violations.append("the same seed drops different keys when called again, as activation checkpointing does")
    elif not violations:
        kept, is_read = weights > 0.5 / (1.0 - case.dropout), readable | (exact == 0.0)
        violations += _output_violations(inputs, outputs, kept, is_read)
    with contextlib.suppress(Refused):
        if violations and (wrong := _find_usual_mistake(case, normal, call, exact, readable)):
            violations = [wrong]
    return ProbeResult(outputs, tuple(violations), tuple(warnings))


def _find_usual_mistake(case: Case, normal: Inputs, call: BackendCall, exact: Tensor, readable: Tensor) -> str:
    """Return what is wrong without dropout too, "" if nothing is, so that dropout is to blame."""
    case = replace(case, dropout=0.0)
    weights = _read_all_weights(case, normal, call, exact)
    lost = readable & ~((weights - 1.0).abs() < 0.5)
    if bool(lost.any()):
        return f"without dropout too, weights up to {float(exact[lost].max()):.2g} are wrong by more than half"
    inputs, every = cast_to_case(normal, case), torch.ones_like(readable)
    return next(_output_violations(inputs, call(inputs), every, every), "")


def _read_all_weights(case: Case, normal: Inputs, call: BackendCall, exact: Tensor) -> Tensor:
    """Return the weights of every key as `_read_weights` does: `(batch, num_heads, seqlen_q, seqlen_k)`."""
    starts = range(0, case.seqlen_k, case.v_head_dim)
    return torch.cat([_read_weights(case, normal, call, exact, start, case.seed) for start in starts], -1)


def _read_weights(case: Case, normal: Inputs, call: BackendCall, exact: Tensor, start: int, seed: int) -> Tensor:
    """Return the weights of v_head_dim keys from `start`, divided by the `exact` ones without dropout: float32.

    A hidden key's weight is divided by an equal share. Weights that the dtype cannot hold are 0.
    """
    stop = min(start + case.v_head_dim, case.seqlen_k)
    v = torch.zeros_like(normal.v)
    keys = torch.arange(start, stop, device=v.device)
    v[:, keys, :, keys - start] = 1.0
    inputs = cast_to_case(replace(normal, q=normal.q * 0, k=normal.k * 0, v=v), case)
    torch.manual_seed(seed)
    out = call(inputs).out
    count = (exact > 0.0).sum(-1, keepdim=True)
    scale = torch.where(exact > LEAST_WEIGHT[case.dtype], 1.0 / exact, (exact == 0.0) * count)[..., start:stop]
    weights = out[..., : stop - start].float().transpose(1, 2) * scale
    return torch.where(count > 0, weights, 0.0)  # padding may hold anything


def _judge_mask(case: Case, visible: Tensor, hidden: Tensor, weights: Tensor) -> tuple[list[str], list[str]]:
    """Return the errors of the kept keys, and the ways in which they are less random than expected.

    All tensors are `(batch, num_heads, seqlen_q, seqlen_k)`.

    One draw for a whole row, all heads or the batch is not a dropout of weights. A draw shared by a few queries or keys
    keeps the mean and the gradients; cuDNN 9.19 drops the same keys in queries i, i + 2, i + 4 and i + 6 of eight.
    """
    kept_weight = 1.0 / (1.0 - case.dropout)
    kept = weights > 0.5 * kept_weight
    if bool((kept & hidden).any()):
        return ["with dropout, a query attends to a key that must be hidden"], []
    # flash-attn compares 8 random bits (csrc/flash_attn/flash_api.cpp, p_dropout_in_uint8_t), so the kept share is
    # exact only to 1/256: that is its resolution, not a fault.
    total = int(visible.sum())
    if total < MIN_WEIGHTS:
        return [], []
    share = float((kept & visible).sum()) / total
    chance = math.sqrt(case.dropout * (1.0 - case.dropout) / total)
    outliers = list(_list_outliers(kept, visible, 1.0 - case.dropout))
    if not abs(share - (1.0 - case.dropout)) < 6.0 * chance + DROPOUT_STEP:
        return [f"dropout {case.dropout:g} keeps {share:.4g} of the weights, not {1.0 - case.dropout:g}", *outliers], []
    violations: list[str] = []
    warnings: list[str] = []
    mean_weight = float(weights[kept].double().mean())
    if not abs(mean_weight / kept_weight - 1.0) < 0.01:
        violations.append(
            f"the weights that dropout {case.dropout:g} keeps are multiplied by {mean_weight:.4g}, "
            f"not {kept_weight:.4g}"
        )
    if outliers:
        return violations + outliers, warnings
    # With independent keys, the number kept in a row, a column, or at one position in all heads has a binomial
    # variance.
    for name, dims in (("rows", (3,)), ("columns", (2,)), ("heads", (1,)), ("batch rows", (0,))):
        offset = (kept.double() - share) * visible
        size = visible.double().sum(dims)
        is_large = size >= (32 if dims[0] > 1 else 2)
        variance = share * (1.0 - share) * size
        if not bool(is_large.any()):
            continue
        ratios = (offset.sum(dims).square() / variance.clamp_min(1e-30))[is_large]
        excess = float(((1.0 - 6.0 * share * (1.0 - share)) / variance[is_large]).mean())  # kurtosis, if few share
        spread = 2.0 + max(0.0, excess)
        ratio, allowed = float(ratios.mean()), 8.0 * math.sqrt(spread / ratios.numel()) + 10 * DROPOUT_STEP
        if not abs(ratio - 1.0) < allowed:
            text = f"dropout's spread over {name} is {ratio:.3g} times that of independent keys"
            is_partial = name in ("rows", "columns") and 1.0 < ratio < float(size[is_large].mean()) / 4.0
            sharers = "keys of a query" if name == "rows" else "queries"
            if is_partial:
                warnings.append(f"{text}: about {ratio:.1f} {sharers} share each draw")
            else:
                violations.append(text + "".join(_name_copies(kept, dims[0], name)))
            break
    return violations, warnings


def _list_outliers(kept: Tensor, visible: Tensor, share: float) -> Iterator[str]:
    """Yield the key, and the query, whose share of kept weights differs most from the others', if none may by chance.

    Draws that weights share widen all of these shares, which is judged elsewhere.
    """
    for name, dims in (("key", (0, 1, 2)), ("query", (0, 1, 3))):
        size, count = visible.double().expand(kept.shape).sum(dims), kept.sum(dims)
        judged = (share * (1.0 - share) * size >= MIN_VARIANCE).nonzero()[:, 0]
        if len(judged):
            z2 = (count - share * size)[judged].square() / (share * (1.0 - share) * size[judged])
            worst = int(judged[z2.argmax()])
            if float(z2.max()) > MAX_Z**2 * max(1.0, float(z2.median()) / MEDIAN_CHI_SQUARE):
                kept_share = float(count[worst] / size[worst])
                yield f"dropout keeps {kept_share:.3g} of the weights of {name} {worst}, not {share:.3g}"


def _name_copies(kept: Tensor, dim: int, name: str) -> Iterator[str]:
    """Yield the first two heads, or batch rows, that drop the same keys."""
    if dim > 1:
        return
    for i, j in itertools.combinations(range(kept.shape[dim]), 2):
        if torch.equal(kept.select(dim, i), kept.select(dim, j)):
            yield f": {name} {i} and {j} drop the same keys"
            return


def _output_violations(inputs: Inputs, outputs: Outputs, kept: Tensor, is_read: Tensor) -> Iterator[str]:
    """Yield each output that is not attention with the mask `kept` (batch, num_heads, seqlen_q, seqlen_k).

    If queries have few keys each, dq and dk are near 0 and all rounding, so they are not judged. Nor are heads in which
    keys count here whose mask could not be read: without q and k, a steep ALiBi slope leaves them no weight.
    """
    case, right = inputs.case, DenseAttention.of(inputs)
    has_keys = masks.rows_with_keys(case, inputs.device)[:, None, :, None]
    keys_per_query = (right.visible.sum((1, 2, 3)) / has_keys.sum((1, 2, 3)).clamp_min(1)).expand(case.batch)
    factor = kept.to(right.q.dtype) / (1.0 - case.dropout)
    dropped = replace(right, hooks={"weights": factor.mul, "dp": factor.mul})
    exact = dropped.forward()
    if case.backward:
        exact |= dropped.backward(exact)
    noise = _rounding_noise(right, factor)
    p = right.weights()
    unread, whole = (x.square().sum((2, 3)).sqrt() for x in (torch.where(is_read, 0.0, p), p))
    is_lost = unread > 0.25 * MAX_RELATIVE_ERROR[case.dtype] * whole
    for name in ("out", "dq", "dk", "dv"):
        got, want = getattr(outputs, name), exact.get(name)
        if got is None or want is None:
            continue
        error = got.transpose(1, 2).to(want.dtype) - want
        if name in ("out", "dq"):
            error = torch.where(has_keys, error, 0.0)
        size, error = (x.square().sum((2, 3)).sqrt() for x in (want, error))
        allowed = torch.maximum(
            MAX_RELATIVE_ERROR[case.dtype] * size.clamp_min(1e-30), MAX_NOISE * noise.get(name, size * 0.0)
        )
        ratio = torch.where(is_lost.unflatten(1, (error.shape[1], -1)).any(2), 0.0, error / allowed)
        if name in ("dq", "dk"):
            # A steep ALiBi slope leaves a query few keys too: eager in bfloat16 has 3.4e-2.
            ratio = torch.where((keys_per_query >= MIN_KEYS)[:, None], ratio / (2.0 if case.alibi else 1.0), 0.0)
        if not bool((ratio <= 1.0).all()):
            batch, head = divmod(int(ratio.nan_to_num(math.inf).argmax()), ratio.shape[1])
            relative = float(error[batch, head] / size[batch, head].clamp_min(1e-30))
            why = "is wrong for the keys that the forward pass drops under the same seed"
            if not case.dropout:
                name, why = f"without dropout too, {name}", "is wrong"
            yield f"{name} of batch {batch}, head {head} {why}: relative error {relative:.2g}"


def _rounding_noise(right: DenseAttention, factor: Tensor) -> dict[str, Tensor]:
    """Return the rms error of each head's out and dv if scores are rounded to the case's dtype, as eager does.

    It matters if a query sees few keys: a kept one has the relative error of its score, and of the other keys'.
    """
    score_variance = SCORE_ROUNDINGS * (KAPPA[right.case.dtype] * right.scores()[0]).square()
    score_variance = torch.where(right.visible, score_variance, 0.0)
    p = right.weights()
    shared = (p.square() * score_variance).sum(-1, keepdim=True)  # the variance of the row's LSE
    variance = p.square() * ((1.0 - 2.0 * p) * score_variance + shared).clamp_min(0.0)
    variance = (variance + (ETA if right.case.dtype == "float16" else 0.0) ** 2) * factor.square() * right.visible
    v2, dout2 = (x.square().sum(-1) for x in (right.v[:, right.v_heads], right.dout))
    dv = (variance.sum(-1) * dout2).sum(-1)
    dv = dv.new_zeros(len(dv), right.case.num_kv_heads).index_add_(1, right.v_heads, dv)
    return {"out": (variance.sum(-2) * v2).sum(-1).sqrt(), "dv": dv.sqrt()}
