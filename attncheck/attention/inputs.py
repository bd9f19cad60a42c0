"""The inputs of a case, made on the device from its seed.

The distributions are those of the numerical study behind the verdicts: normal; FlashAttention-3's outliers (arXiv
2407.08608, section 4.3); large logits; Student's t with 3 degrees of freedom; sums that cancel; a ramp of keys (block
LSEs more than 100 apart), and one that rises, so that each block has a new maximum; small (float16 subnormal
gradients); negative (no logit is above -100, which empties the softmax if the maximum starts at 0); a first key that
outweighs all others, as in trained heads. `torch.rand` is never used: with positive values dq cancels and the rows of
the output are equal, so that the rounding errors of a perfect kernel are not independent.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.masks import alibi_slopes, rows_with_keys
from attncheck.core.cases import (
    BROADCAST_STRIDES,
    FIRST_KEY_LOGIT,
    NEGATIVE_LOGIT,
    SINK_LEVELS,
    STRIDE_LETTERS,
    Case,
    sampled_rows,
)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a backend: q, k, v, dout in the case's dtype and layout; sinks and ALiBi slopes in float32."""

    case: Case
    device: str
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    rank: int = 0  # if the case is context-parallel, the tensors are this rank's shard…
    group: Any = None  # …within this process group


def make_inputs(case: Case, device: str) -> Inputs:
    """Return the inputs of a case on `device`: the same bits for the same case, device kind and torch."""
    generator = torch.Generator(device=device).manual_seed(case.seed + 1)

    def draw_normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    q = _draw_values(case, draw_normal, case.batch, case.seqlen_q, case.num_heads, case.head_dim)
    k = _draw_values(case, draw_normal, case.batch, case.seqlen_k, case.num_kv_heads, case.head_dim)
    v = _draw_values(case, draw_normal, case.batch, case.seqlen_k, case.num_kv_heads, case.v_head_dim)
    dout = _draw_values(case, draw_normal, case.batch, case.seqlen_q, case.num_heads, case.v_head_dim)
    q, k, v, dout = _scale_values(case, q, k, v, dout)
    if case.dout_exponent:
        dout = dout * 2.0**case.dout_exponent
    if not case.every_row:
        is_sampled = torch.zeros(case.seqlen_q, dtype=torch.bool, device=device)
        is_sampled[list(sampled_rows(case))] = True
        dout = dout * is_sampled[None, :, None, None]
    sinks = _draw_sinks(case, draw_normal(case.num_heads)) if case.sinks else None
    slopes = alibi_slopes(case.num_heads, device) if case.alibi else None
    dtype = getattr(torch, case.dtype)
    inputs = Inputs(case, device, q.to(dtype), k.to(dtype), v.to(dtype), dout.to(dtype), sinks, slopes)
    return apply_strides(zero_padding_dout(inputs))


def _draw_sinks(case: Case, normal: Tensor) -> Tensor:
    """Return a sink per head, near the head's level from -2 to 6; a sink near 0 has no weight in a long row.

    In float32, with values that bfloat16 represents exactly, because some kernels accept only that.
    """
    levels = torch.tensor(SINK_LEVELS, device=normal.device).repeat(case.num_heads)[: case.num_heads]
    return (normal + levels).to(torch.bfloat16).float()


def _draw_values(case: Case, draw_normal: object, *shape: int) -> Tensor:
    """Return random values of the case's distribution, in float32."""
    assert callable(draw_normal)
    values: Tensor = draw_normal(*shape)
    if case.values == "outlier":
        spikes: Tensor = 10.0 * draw_normal(*shape) * (draw_normal(*shape).abs() > 3.2905)  # one in a thousand
        return values + spikes
    if case.values == "long_tail":
        chi_square: Tensor = sum(draw_normal(*shape).square() for _ in range(3))
        return values / (chi_square / 3.0).sqrt()
    return values


def _scale_values(case: Case, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v, dout scaled as the case's `values` requires."""
    if case.values == "large":
        q, k = q * 4.0, k * 2.0
    elif case.values == "cancelling":
        return _shift_values(q, k, v, dout)
    elif case.values in ("ramp", "rising"):
        first, last = (41.0, 1.0) if case.values == "ramp" else (1.0, 41.0)
        k = k * torch.linspace(first, last, k.shape[1], device=k.device)[None, :, None, None]
    elif case.values == "small":
        q, k, v, dout = (x * 0.05 for x in (q, k, v, dout))
    elif case.values == "negative":
        size = math.sqrt(NEGATIVE_LOGIT / case.softmax_scale)
        q[..., 0], k[..., 0] = size, -size
    elif case.values == "first_key":
        q, k = q * 0.5, k * 0.5
        q[..., 0], k[..., 0] = 4.0, 0.0
        k[:, 0, :, 0] = FIRST_KEY_LOGIT / 4.0 / case.softmax_scale
    return q, k, v, dout


def _shift_values(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs whose sums cancel, which multiplies what a kernel loses before the end of a sum.

    In kv heads 0, 2, …, scores are large and nearly equal. v and dout follow a half wave along the sequence, so that
    the sums of all four results rise and fall again. In the others v and dout have a mean, so that dP and D nearly
    cancel in dS.
    """
    heads = torch.arange(k.shape[2], device=k.device)[:, None] % 2 == 0
    q_heads = heads.repeat_interleave(q.shape[2] // k.shape[2], 0)

    def shift(x: Tensor, in_wave: Tensor) -> Tensor:
        angles = torch.linspace(0.0, math.pi, x.shape[1], device=x.device)
        return x + torch.where(in_wave, 3.0 * torch.cos(angles)[:, None, None], 1.0)

    q, k = (torch.where(equal, 1.0 + 0.5 * x, x) for x, equal in ((q, q_heads), (k, heads)))
    return q, k, shift(v, heads), shift(dout, q_heads)


def zero_padding_dout(inputs: Inputs) -> Inputs:
    """Return `inputs` with dout zero in padding and in rows without keys, which a loss ignores.

    The attention of a query without keys is a convention (0, NaN, or the mean of v), so no verdict depends on it.
    """
    has_keys = rows_with_keys(inputs.case, inputs.device)
    if bool(has_keys.all()):
        return inputs
    return replace(inputs, dout=inputs.dout * has_keys[:, :, None, None])


def negate_inputs(inputs: Inputs) -> Inputs:
    """Return `inputs` with q, k, v and dout negated, in the same memory layout."""
    q, k, v, dout = map(_negate, _input_tensors(inputs))
    negated = replace(inputs, q=q, k=k, v=v, dout=dout)
    return negated if inputs.case.strides in BROADCAST_STRIDES else apply_strides(negated)


def _negate(x: Tensor) -> Tensor:
    """Return -x with the strides of x, also those of 0; with others a backend would compile or plan again."""
    stored = x[tuple(slice(1) if stride == 0 else slice(None) for stride in x.stride())]
    negated = torch.empty_strided(stored.shape, stored.stride(), dtype=x.dtype, device=x.device)
    return torch.neg(stored, out=negated).expand_as(x)


def apply_strides(inputs: Inputs) -> Inputs:
    """Return `inputs` with the same values in the memory layout of the case's `strides`."""
    case = inputs.case
    if case.strides == "sliced":  # slices of one fused projection
        qkv = torch.cat((inputs.q, inputs.k, inputs.v), dim=2)
        q, k, v = qkv.split((case.num_heads, case.num_kv_heads, case.num_kv_heads), dim=2)
        return replace(inputs, q=q, k=k, v=v)
    if case.strides == "scalar_dout":  # the gradient of out.sum(): one expanded number, with every stride 0
        return replace(inputs, dout=inputs.dout.new_ones(()).expand_as(inputs.dout))
    if case.strides == "expanded":  # one kv head expanded to many, and one head of dout to all
        k, v = (x[:, :, :1].expand(-1, -1, case.num_kv_heads, -1) for x in (inputs.k, inputs.v))
        return replace(inputs, k=k, v=v, dout=inputs.dout[:, :, :1].expand_as(inputs.dout))
    letters = STRIDE_LETTERS.get(case.strides, case.strides)
    q, k, v, dout = (_lay_out(x, letter) for x, letter in zip(_input_tensors(inputs), letters))
    return replace(inputs, q=q, k=k, v=v, dout=dout)


def _lay_out(x: Tensor, letter: str) -> Tensor:
    """Return x in the memory layout of `letter`; memory between slices holds NaN."""
    if letter == "t":  # (batch, heads, seqlen, head_dim) in memory, as for SDPA's callers
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if letter == "e":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if letter in ("s", "r"):
        dim = 2 if letter == "s" else 1
        shape = [size + (index == dim) for index, size in enumerate(x.shape)]
        return x.new_full(shape, math.nan).narrow(dim, 1, x.shape[dim]).copy_(x)
    return x.contiguous()


def _input_tensors(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return inputs.q, inputs.k, inputs.v, inputs.dout
