"""Attention of one document as flash-attn's kernels compute it, in plain torch: what is rounded there is rounded here.

Scores and sums are float32; P and dS are rounded to the io dtype before they meet V, dout, K and Q; out, dq, dk and dv
are rounded once; dk and dv of a group of query heads are rounded for each head and then added up (flash-attn 2.8.3,
csrc/flash_attn/flash_api.cpp, `dk_expanded`). Queries come in chunks, and a chunk meets only the keys that it sees.
A query that sees no key has out 0 and LSE +inf (csrc/flash_attn/src/softmax.h, `normalize_softmax_lse`). ALiBi under a
causal mask is slope · key, which moves LSE by slope · query (csrc/flash_attn/src/mask.h, `apply_mask`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = (16, 128)  # queries of a chunk: as many as make its scores fit in CELLS
CELLS = 1 << 22


@dataclass(frozen=True)
class Mask:
    """What a block call is told: scale, soft-cap, ALiBi, and diagonals that run through the bottom right corner."""

    softmax_scale: float
    window: tuple[int, int] = (-1, -1)  # keys before and after a query's own; -1: all; causal: none after
    softcap: float = 0.0
    slopes: Tensor | None = None  # (heads,) float32

    def keys(self, first: int, last: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
        """Return the range of keys that the queries first … last - 1 may see."""
        offset, (left, right) = seqlen_k - seqlen_q, self.window
        begin = 0 if left < 0 else max(0, first + offset - left)
        end = seqlen_k if right < 0 else min(seqlen_k, last + offset + right)
        return begin, max(begin, end)

    def causal(self, seqlen_k: int) -> bool:
        """Return whether the kernels' causal variant runs; a window that sees all keys before is none."""
        left, right = self.window
        return right == 0 and not 0 <= left < seqlen_k


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Return out `(seqlen_q, heads, head_dim)` in q's dtype and LSE `(heads, seqlen_q)` in float32."""
    out = torch.zeros_like(q)
    lse = torch.full((q.shape[1], q.shape[0]), math.inf, device=q.device)
    for rows, keys in _chunks(q, k, mask):
        s, _ = _scores(q[rows], k[keys], rows, keys, q.shape[0], k.shape[0], mask)
        top = s.amax(-1, keepdim=True).clamp_min(-1e30)
        p = torch.exp(s - top)
        total = p.sum(-1, keepdim=True)
        part = torch.matmul(_rounded(p, q), _heads(v[keys], q.shape[1])) / total.clamp_min(1e-30)
        out[rows] = part.transpose(0, 1).to(q.dtype)
        lse[:, rows] = torch.where(total == 0, math.inf, top + torch.log(total))[..., 0]
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv in q's dtype, and D = rowsum(dout · out), `(heads, seqlen_q)` float32."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    dq = torch.zeros_like(q)
    dk, dv = (torch.zeros(heads, k.shape[0], q.shape[2], device=q.device) for _ in range(2))
    delta = (dout.float() * out.float()).sum(-1).transpose(0, 1)
    for rows, keys in _chunks(q, k, mask):
        s, slope = _scores(q[rows], k[keys], rows, keys, q.shape[0], k.shape[0], mask)
        p = torch.exp(s - lse[:, rows, None])
        dp = torch.matmul(_heads(dout[rows], heads), _heads(v[keys], heads).transpose(-1, -2))
        ds = p * (dp - delta[:, rows, None])
        ds = _rounded(ds if slope is None else ds * slope, q)
        dq[rows] = (mask.softmax_scale * torch.matmul(ds, _heads(k[keys], heads))).transpose(0, 1).to(q.dtype)
        dk[:, keys] += mask.softmax_scale * torch.matmul(ds.transpose(-1, -2), _heads(q[rows], heads))
        dv[:, keys] += torch.matmul(_rounded(p, q).transpose(-1, -2), _heads(dout[rows], heads))
    return dq, _summed(dk, group, q), _summed(dv, group, q), delta


def _chunks(q: Tensor, k: Tensor, mask: Mask) -> Iterator[tuple[slice, slice]]:
    """Yield chunks of queries with the keys that any of them sees."""
    fitting = CELLS // max(1, q.shape[1] * k.shape[0])
    size = min(max(fitting, ROWS[0]), ROWS[1])
    for first in range(0, q.shape[0], size):
        last = min(first + size, q.shape[0])
        begin, end = mask.keys(first, last, q.shape[0], k.shape[0])
        if end > begin:
            yield slice(first, last), slice(begin, end)


def _scores(
    q: Tensor, k: Tensor, rows: slice, keys: slice, seqlen_q: int, seqlen_k: int, mask: Mask
) -> tuple[Tensor, Tensor | None]:
    """Return the scores `(heads, rows, keys)`, -inf where nothing is seen, and the soft-cap's slope."""
    s = torch.matmul(_heads(q, q.shape[1]), _heads(k, q.shape[1]).transpose(-1, -2)) * mask.softmax_scale
    slope = None
    if mask.softcap:
        tanh = torch.tanh(s / mask.softcap)
        s, slope = tanh * mask.softcap, 1.0 - tanh * tanh
    i = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (seqlen_k - seqlen_q)
    j = torch.arange(keys.start, keys.stop, device=q.device)[None]
    if mask.slopes is not None:
        distance = -j if mask.causal(seqlen_k) else (i - j).abs()
        s = s - mask.slopes.float().view(-1, 1, 1) * distance
    left, right = mask.window
    hidden = torch.zeros(len(i), j.shape[1], dtype=torch.bool, device=q.device)
    if right >= 0:
        hidden |= j > i + right
    if left >= 0:
        hidden |= j < i - left
    return s.masked_fill(hidden, -math.inf), slope


def _heads(x: Tensor, heads: int) -> Tensor:
    """Return `(tokens, kv heads, d)` as `(heads, tokens, d)` in float32, each kv head once for every query head."""
    return x.transpose(0, 1).float().repeat_interleave(heads // x.shape[1], 0)


def _rounded(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype).float()


def _summed(x: Tensor, group: int, like: Tensor) -> Tensor:
    """Return `(heads, tokens, d)` rounded, then added up over each group, as `(tokens, kv heads, d)`."""
    x = x.to(like.dtype)
    if group > 1:
        x = x.unflatten(0, (-1, group)).sum(1)
    return x.transpose(0, 1)
