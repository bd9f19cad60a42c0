"""The exact reference of a case and, alongside each element, the rounding noise that an ideal kernel must make.

One pass over chunks of query rows yields out, LSE, dq, dk and dv, and sigma, the rms error of a kernel of the judged
class (`attncheck.attention.reference.rounding_noise`). Memory is a chunk of rows times their visible keys, plus the
results; never seqlen².
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import alibi_bias_block, mask_bias_block, mask_block
from attncheck.attention.reference.rounding_noise import (
    TANH_ERROR,
    ExactChunk,
    Noise,
    RoundingModel,
    Variances,
    rounding_model,
)
from attncheck.core.cases import Case, Segment, diagonal_shift, iter_segments, sampled_rows, visible_bounds

CHUNK_ROWS = 64  # of each document, at least, in a chunk of several documents
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
CHUNK_SCORES = {"cpu": 1 << 17, "cuda": 1 << 24}  # score entries of a chunk: the CPU's cache, the GPU's occupancy


ExactChunks = dict[tuple[int, ...], tuple[ExactChunk, Tensor, Tensor]]  # with LSE and D, by batch row and first query


@dataclass
class Reference:
    """The exact results of a case and their rounding noise; rows of q outside the sample are zero and not `judged`."""

    case: Case
    out: Tensor  # (batch, rows, num_heads, v_head_dim), wide
    lse: Tensor  # (batch, num_heads, rows), wide; -inf without visible keys
    expected_logit: Tensor  # (batch, num_heads, rows): sum of P·S, the derivative of LSE by the softmax scale
    lse_slack: Tensor  # (batch, num_heads, rows): the largest change of LSE by an approximate tanh
    dq: Tensor  # (batch, rows, num_heads, head_dim), wide
    dk: Tensor
    dv: Tensor
    rounds_alike: bool  # whether all rows share roundings, which then do not average out
    sigma: dict[str, Tensor] = field(default_factory=dict)  # "out", "dq", "dk", "dv", float32
    dsinks: Tensor | None = None  # (num_heads,)
    rows: Tensor | None = None  # the sampled query rows, None: all of them
    judged: Tensor | None = None  # bool (batch, rows): neither padding nor a row without keys


def wide_dtype(device: str, dtype: str) -> torch.dtype:
    """Return the dtype of the reference on `device`: float64 if that is fast, otherwise float32 for 16-bit cases.

    Datacenter GPUs do float64 at half of float32's rate or nearly so; the others at 1/32 or 1/64 (CUDA C++ Programming
    Guide, throughput of native arithmetic instructions). A CPU takes twice as long for it. float32's
    errors are below those of an ideal 16-bit kernel, mostly by two orders of magnitude.
    """
    is_fast = device != "cpu" and torch.cuda.get_device_capability() in FAST_FLOAT64
    return torch.float64 if is_fast or dtype == "float32" else torch.float32


def compute_reference(
    inputs: Inputs, noise: Noise = "fused", rounded_bias: bool = False, roundings: tuple[float, float] = (0.0, 0.0)
) -> Reference:
    """Return the reference of `inputs`, with the rounding noise of a kernel of class `noise`.

    `rounded_bias`: the kernel takes ALiBi as a mask in the case's dtype. `roundings`: the number of roundings of its
    sums for dq, and for dk and dv, in addition to the final rounding.
    """
    return add_sum_roundings(compute_unrounded_reference(inputs, noise, rounded_bias), inputs.device, roundings)


def compute_unrounded_reference(
    inputs: Inputs, noise: Noise = "fused", rounded_bias: bool = False, kept: ExactChunks | None = None
) -> Reference:
    """Return the exact results with variances in `sigma`, without those that `add_sum_roundings` adds.

    Exact chunks are looked up in `kept`, and stored there for the noise of another class.
    """
    case = inputs.case
    model = rounding_model(case, inputs.device, noise, rounded_bias)
    wide = wide_dtype(inputs.device, case.dtype)
    result = _allocate_reference(inputs, wide, model)
    for segment_run in _group_equal_segments(case, CHUNK_SCORES[torch.device(inputs.device).type]):
        _add_documents(inputs, segment_run, model, result, wide, kept)
    return result


def _allocate_reference(inputs: Inputs, wide: torch.dtype, model: RoundingModel) -> Reference:
    case, device = inputs.case, inputs.device
    sampled = None if case.every_row else torch.tensor(sampled_rows(case), device=device)
    rows = case.seqlen_q if sampled is None else len(sampled)
    q_shape = (case.batch, rows, case.num_heads)
    k_shape = (case.batch, case.seqlen_k, case.num_kv_heads)
    shapes = {"out": (*q_shape, case.v_head_dim), "dq": (*q_shape, case.head_dim)}
    shapes |= {"dk": (*k_shape, case.head_dim), "dv": (*k_shape, case.v_head_dim)}
    sinks = [("dsinks", (case.num_heads,))] if case.sinks else []
    zeros: dict[str, Any] = {name: torch.zeros(*shape, dtype=wide, device=device) for name, shape in shapes.items()}
    return Reference(
        case,
        lse=torch.full((case.batch, case.num_heads, rows), -math.inf, dtype=wide, device=device),
        expected_logit=torch.zeros(case.batch, case.num_heads, rows, device=device),
        lse_slack=torch.zeros(case.batch, case.num_heads, rows, device=device),
        sigma={name: torch.zeros(*shape, device=device) for name, shape in (*shapes.items(), *sinks)},
        dsinks=torch.zeros(case.num_heads, dtype=wide, device=device) if case.sinks else None,
        rows=sampled,
        judged=torch.zeros(case.batch, rows, dtype=torch.bool, device=device),
        rounds_alike=model.rounded_bias and case.alibi,  # the bias rounds equal distances equally
        **zeros,
    )


def _group_equal_segments(case: Case, chunk_scores: int) -> Iterator[list[Segment]]:
    """Yield documents of equal shape, which are computed together: as many as have `CHUNK_ROWS` rows each in one chunk.

    Sampled rows differ between the documents of a packed row.
    """

    def shape(s: Segment) -> tuple[int, ...]:
        own = (s.index,) if case.layout == "packed" and not case.every_row else ()
        return s.q_stop - s.q_start, s.k_stop - s.k_start, *own

    rows = () if case.every_row else sampled_rows(case)  # others, whose dout is 0, give no gradient either
    nonempty = [
        s
        for s in iter_segments(case)
        if s.q_stop > s.q_start
        and s.k_stop > s.k_start
        and (case.every_row or any(s.q_start <= row < s.q_stop for row in rows))
    ]
    for (seqlen_q, seqlen_k, *_), run in itertools.groupby(sorted(nonempty, key=shape), key=shape):
        segments = list(run)
        count = max(1, chunk_scores // (case.num_heads * seqlen_k * min(seqlen_q, CHUNK_ROWS)))
        yield from (segments[start : start + count] for start in range(0, len(segments), count))


def _add_documents(
    inputs: Inputs,
    segment_run: list[Segment],
    model: RoundingModel,
    result: Reference,
    wide: torch.dtype,
    kept: ExactChunks | None,
) -> None:
    """Add documents of one shape to `result`, in chunks."""
    case, first, device = inputs.case, segment_run[0], inputs.device
    batch, q_start, k_start = (
        torch.tensor(places, device=device)[:, None]
        for places in zip(*((s.batch, s.q_start, s.k_start) for s in segment_run))
    )
    seqlen_q, seqlen_k = first.q_stop - first.q_start, first.k_stop - first.k_start
    keys = batch, k_start + torch.arange(seqlen_k, device=device)
    k = inputs.k[keys].to(wide).permute(0, 2, 3, 1)  # (n, kv heads, head_dim, seqlen_k)
    v = inputs.v[keys].to(wide).transpose(1, 2)
    sums = _KeyGradients.zeros(k, v)
    low, high = visible_bounds(case, seqlen_q, seqlen_k)
    size = max(1, CHUNK_SCORES[torch.device(device).type] // (len(segment_run) * case.num_heads * seqlen_k))
    for result_rows, rows, lowest, highest in _iter_chunks(case, first, size, device):
        begin, end = max(0, lowest + low), min(seqlen_k, highest + high + 1)
        if begin >= end:
            continue
        places = batch, result_rows + q_start - first.q_start
        chunk = _Chunk(inputs, model, (batch, rows + q_start), rows, places, begin, end, seqlen_q, seqlen_k)
        chunk.accumulate(k, v, sums, result, kept)
    result.dk[keys] += sums.dk.transpose(1, 2)
    result.dv[keys] += sums.dv.transpose(1, 2)
    result.sigma["dk"][keys] += sums.var_dk.transpose(1, 2)
    result.sigma["dv"][keys] += sums.var_dv.transpose(1, 2)


def _iter_chunks(case: Case, segment: Segment, size: int, device: str) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """For each chunk, yield (indices of the result's rows, rows within the document, the first of these, the last)."""
    if case.every_row:
        seqlen = segment.q_stop - segment.q_start
        for start in range(0, seqlen, size):
            rows = torch.arange(start, min(start + size, seqlen), device=device)
            yield rows + segment.q_start, rows, start, min(start + size, seqlen) - 1
        return
    inside = [pair for pair in enumerate(sampled_rows(case)) if segment.q_start <= pair[1] < segment.q_stop]
    for start in range(0, len(inside), size):
        indices, tokens = torch.tensor(inside[start : start + size], device=device).unbind(1)
        first, last = inside[start][1], inside[min(start + size, len(inside)) - 1][1]
        yield indices, tokens - segment.q_start, first - segment.q_start, last - segment.q_start


@dataclass
class _KeyGradients:
    """Sums of dk, dv and their variances over a document's queries: `(n, kv heads, seqlen_k, d)`."""

    dk: Tensor
    dv: Tensor
    var_dk: Tensor
    var_dv: Tensor

    @classmethod
    def zeros(cls, k: Tensor, v: Tensor) -> "_KeyGradients":
        n, heads, head_dim, seqlen = k.shape
        dk = torch.zeros(n, heads, seqlen, head_dim, dtype=k.dtype, device=k.device)
        var_dk, var_dv = (torch.zeros_like(x, dtype=torch.float32) for x in (dk, v))
        return cls(dk, torch.zeros_like(v), var_dk, var_dv)


@dataclass
class _Chunk:
    """Some query rows of a document, with the keys begin..end-1 that are visible to any of them."""

    inputs: Inputs
    model: RoundingModel
    tokens: tuple[Tensor, Tensor]  # of the inputs: the documents' batch rows (n, 1), and tokens in them (n, rows)
    rows: Tensor  # in the document
    places: tuple[Tensor, Tensor]  # the same in the result's tensors
    begin: int
    end: int
    seqlen_q: int
    seqlen_k: int

    def accumulate(
        self, document_k: Tensor, document_v: Tensor, sums: _KeyGradients, result: Reference, kept: ExactChunks | None
    ) -> None:
        """Add this chunk's part to `sums` and `result`."""
        span = slice(self.begin, self.end)
        key = tuple(int(index.flatten()[0]) for index in self.places) if kept is not None else ()
        exact, lse, delta = (kept or {}).get(key) or self._compute_exact(document_k[..., span], document_v[:, :, span])
        if kept is not None:
            kept[key] = exact, lse, delta
        sums.dk[:, :, span] += torch.matmul(exact.ds.mT, exact.q).mul_(exact.scale)
        sums.dv[:, :, span] += torch.matmul(exact.p.mT, exact.dout)
        variances = Variances(self.model, exact)
        var_out, var_dq = variances.query_variances()
        var_dk, var_dv = variances.key_variances()
        sums.var_dk[:, :, span] += var_dk
        sums.var_dv[:, :, span] += var_dv
        self._store_rows(result.out, exact.out)
        self._store_rows(result.dq, exact.dq)
        self._store_rows(result.sigma["out"], var_out)
        self._store_rows(result.sigma["dq"], var_dq)
        self._store_lse(result, exact, lse)
        assert result.judged is not None
        result.judged[self.places] = exact.visible.any(-1)
        if result.dsinks is not None:
            sink_weight = torch.exp(self._expand_sinks(lse) - lse)
            result.dsinks -= self._split_group(sink_weight * delta).sum((0, 3, 4)).reshape(-1)
            variance = self._split_group(variances.sink_variance(sink_weight, delta))
            result.sigma["dsinks"] += variance.sum((0, 3, 4)).reshape(-1)

    def _compute_exact(self, k: Tensor, v: Tensor) -> tuple[ExactChunk, Tensor, Tensor]:
        """Return the exact tensors, LSE and D; LSE and D keep the last dimension, with size 1."""
        case, scale = self.inputs.case, self.inputs.case.softmax_scale
        q, dout = self._select_rows(self.inputs.q, k), self._select_rows(self.inputs.dout, k)
        s = torch.matmul(q, k).mul_(scale)
        tanh = torch.tanh(s / case.softcap) if case.softcap else None
        s = s if tanh is None else tanh * case.softcap
        bias = self._expand_bias(s)
        s = s if bias is None else s + bias
        visible = mask_block(case, self.rows, self.seqlen_q, self.seqlen_k, self.begin, self.end)
        s = self._split_group(s).masked_fill(~visible, -math.inf).view_as(s)
        lse = torch.logsumexp(s, -1, keepdim=True)
        if self.inputs.sinks is not None:
            lse = torch.logaddexp(lse, self._expand_sinks(lse))
        p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0))
        out = torch.matmul(p, v)
        dp = torch.matmul(dout, v.mT)
        delta = (dout * out).sum(-1, keepdim=True)
        ds_capped = p * (dp - delta)
        ds = ds_capped if tanh is None else ds_capped * (1.0 - tanh.square())
        dq = torch.matmul(ds, k.mT).mul_(scale)
        finite_s = s.masked_fill(s == -math.inf, 0.0)
        exact = ExactChunk(scale, q, k, v, dout, finite_s, p, dp, ds, out, dq, lse, visible, bias, tanh, ds_capped)
        return exact, lse, delta

    def _select_rows(self, x: Tensor, like: Tensor) -> Tensor:
        """Return this chunk's rows of `(batch, seqlen, heads, d)` as `(n, kv heads, group · rows, d)`."""
        rows = x[self.tokens].to(like.dtype).transpose(1, 2)
        return rows.reshape(*like.shape[:2], -1, x.shape[-1])

    def _split_group(self, x: Tensor) -> Tensor:
        """Return `(n, kv heads, group · rows, m)` as `(n, kv heads, group, rows, m)`, a view."""
        return x.view(*x.shape[:2], -1, len(self.rows), x.shape[-1])

    def _expand_bias(self, s: Tensor) -> Tensor | None:
        """Return ALiBi's bias, or an additive mask's, in the shape of the scores."""
        case, slopes = self.inputs.case, self.inputs.slopes
        if slopes is not None:
            offset = diagonal_shift(case, self.seqlen_q, self.seqlen_k)
            bias = alibi_bias_block(slopes.to(s.dtype), self.rows, offset, self.begin, self.end)
        elif case.mask == "additive":
            bias = mask_bias_block(case, self.rows, self.begin, self.end).to(s.dtype).expand(case.num_heads, -1, -1)
        else:
            return None
        return bias.reshape(1, s.shape[1], s.shape[2], -1).expand_as(s)

    def _expand_sinks(self, like: Tensor) -> Tensor:
        """Return each row's sink in the shape of its LSE."""
        assert self.inputs.sinks is not None
        sinks = self.inputs.sinks.to(like.dtype).view(1, like.shape[1], -1, 1, 1)
        return sinks.expand_as(self._split_group(like)).reshape_as(like)

    def _store_rows(self, target: Tensor, x: Tensor) -> None:
        """Write `(n, kv heads, group · rows, d)` to this chunk's rows of `(batch, rows, heads, d)`."""
        heads = x.reshape(x.shape[0], target.shape[2], len(self.rows), -1)
        target[self.places] = heads.transpose(1, 2).to(target.dtype)

    def _store_lse(self, result: Reference, exact: ExactChunk, lse: Tensor) -> None:
        """Store LSE, its derivative by the softmax scale, and the effect of rounded or approximated scores on it."""
        lse_rows, logit_rows, slack_rows = (
            x.transpose(1, 2) for x in (result.lse, result.expected_logit, result.lse_slack)
        )

        def by_row(x: Tensor) -> Tensor:
            return x.view(len(lse), lse_rows.shape[2], len(self.rows)).transpose(1, 2)

        lse_rows[self.places] = by_row(lse)
        logit_rows[self.places] = by_row((exact.p * exact.s).sum(-1)).float()
        if self.model.rounded_bias and exact.bias is not None:
            bias_shift = (exact.p * exact.bias.abs()).sum(-1)
            slack_rows[self.places] += 2.4 * self.model.kappa * by_row(bias_shift).float()
        if self.model.tanh:
            slack_rows[self.places] += TANH_ERROR * by_row((exact.p * exact.s.abs()).sum(-1)).float()


def add_sum_roundings(result: Reference, device: str, roundings: tuple[float, float]) -> Reference:
    """Add the rounding of dk and dv, and of sums; turn variances into standard deviations with a floor.

    A sum of n parts that is rounded after each passes through partial sums, which form a random walk towards the
    result. Their mean square is a third of the result's, plus a third of the walk's variance, taken as the mean square
    of the row. A sum that cancels is therefore charged for the sizes of its partial sums. Among float16's subnormals
    each of these roundings has the same absolute error.
    """
    case, model = result.case, rounding_model(result.case, device, "fused", False)
    roundings_dkv = 2.0 if case.num_kv_heads < case.num_heads else 1.0
    final_roundings = {"dq": 0.0, "dk": roundings_dkv, "dv": roundings_dkv}
    for name, exact in (("dq", result.dq), ("dk", result.dk), ("dv", result.dv)):
        square, times = exact.float().square(), roundings[0 if name == "dq" else 1]
        if times and case.values == "cancelling":  # partial sums follow a half wave: n / 20 times the sum of squares
            result.sigma[name] *= 1.0 + times * (case.seqlen_k if name == "dq" else case.seqlen_q) / 20.0
        if times:
            walk = (square + square.mean(-1, keepdim=True)) / 3.0
            result.sigma[name] += times * (model.kappa**2 * walk + model.eta**2)
        if final_roundings[name]:
            result.sigma[name] += final_roundings[name] * (model.kappa**2 * square + model.eta**2)
    if result.dsinks is not None:  # the sum's own rounding, and that of the sinks' dtype
        result.sigma["dsinks"] += 2.0 * ((model.kappa * result.dsinks.float()).square() + model.eta**2)
    for name, variance in result.sigma.items():
        sigma = variance.clamp_min_(0.0).sqrt_()
        floor = (1e-3 * sigma.square().mean().sqrt()).clamp_min(1e-30) if sigma.numel() else sigma
        result.sigma[name] = torch.maximum(sigma, floor, out=sigma)
    return result
