"""Attention of one document as flash-attn's kernels compute it, in plain torch, with the kernels' roundings.

Scores and sums are float32. P and dS are rounded to the io dtype before the products with V, dout, K and Q. out, dq, dk
and dv are rounded once. dk and dv of a group of query heads are rounded for each head and then summed (flash-attn
2.8.3, csrc/flash_attn/flash_api.cpp, `dk_expanded`). Queries are processed in chunks, each with only its visible keys.
A query without keys has out 0 and LSE +inf (csrc/flash_attn/src/softmax.h, `normalize_softmax_lse`). With a causal
mask, ALiBi is slope · key, which shifts LSE by slope · query (csrc/flash_attn/src/mask.h, `apply_mask`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ROWS = (16, 128)  # the least and the most queries in a chunk; otherwise as many as have CHUNK_SCORES scores
CHUNK_SCORES = 1 << 22


@dataclass(frozen=True)
class ScoreSettings:
    """How a block call changes its scores: scale, soft-cap, ALiBi, and diagonals through the bottom right corner."""

    softmax_scale: float
    window_size: tuple[int, int] = (-1, -1)  # keys before and after a query's own; -1: all; causal: none after
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None  # (heads,) float32

    def visible_keys(self, first: int, last: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
        """Return the range of keys that are visible to the queries first … last - 1."""
        offset, (left, right) = seqlen_k - seqlen_q, self.window_size
        begin = 0 if left < 0 else max(0, first + offset - left)
        end = seqlen_k if right < 0 else min(seqlen_k, last + offset + right)
        return begin, max(begin, end)

    def is_causal(self, seqlen_k: int) -> bool:
        """Return whether the kernels' causal variant runs; a left window that covers all keys counts as no window."""
        left, right = self.window_size
        return right == 0 and not 0 <= left < seqlen_k


def forward(q: Tensor, k: Tensor, v: Tensor, settings: ScoreSettings) -> tuple[Tensor, Tensor]:
    """Return out `(seqlen_q, heads, head_dim)` in q's dtype and LSE `(heads, seqlen_q)` in float32."""
    out = torch.zeros_like(q)
    lse = torch.full((q.shape[1], q.shape[0]), math.inf, device=q.device)
    for rows, keys in _iter_chunks(q, k, settings):
        s, _ = _compute_scores(q[rows], k[keys], rows, keys, q.shape[0], k.shape[0], settings)
        row_max = s.amax(-1, keepdim=True).clamp_min(-1e30)
        p = torch.exp(s - row_max)
        row_sum = p.sum(-1, keepdim=True)
        part = torch.matmul(_round_to_dtype(p, q), _expand_heads(v[keys], q.shape[1])) / row_sum.clamp_min(1e-30)
        out[rows] = part.transpose(0, 1).to(q.dtype)
        lse[:, rows] = torch.where(row_sum == 0, math.inf, row_max + torch.log(row_sum))[..., 0]
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, settings: ScoreSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv in q's dtype, and D = rowsum(dout · out), `(heads, seqlen_q)` float32."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    dq = torch.zeros_like(q)
    dk, dv = (torch.zeros(heads, k.shape[0], q.shape[2], device=q.device) for _ in range(2))
    delta = (dout.float() * out.float()).sum(-1).transpose(0, 1)
    for rows, keys in _iter_chunks(q, k, settings):
        s, cap_slope = _compute_scores(q[rows], k[keys], rows, keys, q.shape[0], k.shape[0], settings)
        p = torch.exp(s - lse[:, rows, None])
        dp = torch.matmul(_expand_heads(dout[rows], heads), _expand_heads(v[keys], heads).transpose(-1, -2))
        ds = p * (dp - delta[:, rows, None])
        ds = _round_to_dtype(ds if cap_slope is None else ds * cap_slope, q)
        dq_rows = settings.softmax_scale * torch.matmul(ds, _expand_heads(k[keys], heads))
        dq[rows] = dq_rows.transpose(0, 1).to(q.dtype)
        dk[:, keys] += settings.softmax_scale * torch.matmul(ds.transpose(-1, -2), _expand_heads(q[rows], heads))
        dv[:, keys] += torch.matmul(_round_to_dtype(p, q).transpose(-1, -2), _expand_heads(dout[rows], heads))
    return dq, _sum_groups(dk, group, q), _sum_groups(dv, group, q), delta


def _iter_chunks(q: Tensor, k: Tensor, settings: ScoreSettings) -> Iterator[tuple[slice, slice]]:
    """Yield chunks of queries, each with the keys that are visible to any of them."""
    rows_that_fit = CHUNK_SCORES // max(1, q.shape[1] * k.shape[0])
    size = min(max(rows_that_fit, CHUNK_ROWS[0]), CHUNK_ROWS[1])
    for first in range(0, q.shape[0], size):
        last = min(first + size, q.shape[0])
        begin, end = settings.visible_keys(first, last, q.shape[0], k.shape[0])
        if end > begin:
            yield slice(first, last), slice(begin, end)


def _compute_scores(
    q: Tensor, k: Tensor, rows: slice, keys: slice, seqlen_q: int, seqlen_k: int, settings: ScoreSettings
) -> tuple[Tensor, Tensor | None]:
    """Return the scores `(heads, rows, keys)`, -inf if a key is hidden, and the soft-cap's slope."""
    heads, cap_slope = q.shape[1], None
    s = torch.matmul(_expand_heads(q, heads), _expand_heads(k, heads).transpose(-1, -2)) * settings.softmax_scale
    if settings.softcap:
        tanh = torch.tanh(s / settings.softcap)
        s, cap_slope = tanh * settings.softcap, 1.0 - tanh * tanh
    i = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (seqlen_k - seqlen_q)
    j = torch.arange(keys.start, keys.stop, device=q.device)[None]
    if settings.alibi_slopes is not None:
        distance = -j if settings.is_causal(seqlen_k) else (i - j).abs()
        s = s - settings.alibi_slopes.float().view(-1, 1, 1) * distance
    left, right = settings.window_size
    hidden = torch.zeros(len(i), j.shape[1], dtype=torch.bool, device=q.device)
    if right >= 0:
        hidden |= j > i + right
    if left >= 0:
        hidden |= j < i - left
    return s.masked_fill(hidden, -math.inf), cap_slope


def _expand_heads(x: Tensor, heads: int) -> Tensor:
    """Return `(tokens, kv heads, d)` as `(heads, tokens, d)` in float32, each kv head once for every query head."""
    return x.transpose(0, 1).float().repeat_interleave(heads // x.shape[1], 0)


def _round_to_dtype(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype).float()


def _sum_groups(x: Tensor, group: int, like: Tensor) -> Tensor:
    """Return `(heads, tokens, d)` rounded, then summed over each group of heads, as `(tokens, kv heads, d)`."""
    x = x.to(like.dtype)
    if group > 1:
        x = x.unflatten(0, (-1, group)).sum(1)
    return x.transpose(0, 1)
