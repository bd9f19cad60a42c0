"""Masks, cu_seqlens and ALiBi biases of a case, as tensors."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from attncheck.core.cases import Case, Segment, diagonal_shift, iter_segments, visible_bounds

P = ParamSpec("P")
MAX_KEPT_SCORES = 1 << 22  # of a case whose mask is kept
T = TypeVar("T", Tensor, "tuple[Tensor, ...]")
watchers: list[Callable[[str, Tensor], None]] = []  # receive the arguments that are passed to calls


def hand_over(name: str, x: Tensor) -> Tensor:
    """Return `x`, an argument of a kernel built from a case's inputs. A guard around the call can record its bits."""
    for watch in watchers:
        watch(name, x)
    return x


def _hands_over(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for functions that build arguments of this name."""

    def decorate(build: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(build)
        def build_watched(*args: P.args, **kwargs: P.kwargs) -> T:
            built = build(*args, **kwargs)
            for x in (built,) if isinstance(built, Tensor) else built:
                hand_over(name, x)
            return built

        return build_watched

    return decorate


def _keeps_small(build: Callable[[Case, str], Tensor]) -> Callable[[Case, str], Tensor]:
    """Return `build` with small results kept, as several calls need them; each call gets a copy."""
    kept = functools.lru_cache(maxsize=2)(build)

    @functools.wraps(build)
    def build_once(case: Case, device: str) -> Tensor:
        return kept(case, device).clone() if case.scores < MAX_KEPT_SCORES else build(case, device)

    return build_once


def mask_block(case: Case, rows: Tensor, seqlen_q: int, seqlen_k: int, first: int, last: int) -> Tensor:
    """Return a bool mask `(rows, last - first)`: whether queries `rows` of a document attend to keys first..last-1."""
    low, high = visible_bounds(case, seqlen_q, seqlen_k)
    distance = torch.arange(first, last, dtype=torch.int32, device=rows.device)[None, :] - rows.to(torch.int32)[:, None]
    visible = (distance >= low) & (distance <= high)
    if not case.attention_chunk:
        return visible
    query_chunk = (rows + diagonal_shift(case, seqlen_q, seqlen_k)) // case.attention_chunk
    return visible & (query_chunk[:, None] == torch.arange(first, last, device=rows.device) // case.attention_chunk)


def visible_spans(case: Case, segment: Segment, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return a document's queries, and each query's first visible key and one past the last, as row indices."""
    q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
    low, high = visible_bounds(case, q, k)
    rows = torch.arange(q, device=device)
    first, last = rows + low, rows + high + 1
    if case.attention_chunk:
        position = rows + diagonal_shift(case, q, k)
        chunk_start = position - position % case.attention_chunk
        first, last = torch.maximum(first, chunk_start), torch.minimum(last, chunk_start + case.attention_chunk)
    first, last = first.clamp(0, k), last.clamp(0, k)
    return rows + segment.q_start, first + segment.k_start, torch.maximum(first, last) + segment.k_start


def rows_with_keys(case: Case, device: str) -> Tensor:
    """Return bool `(batch, seqlen_q)`: True for rows that are neither padding nor without keys."""
    has_keys = torch.zeros(case.batch, case.seqlen_q, dtype=torch.bool, device=device)
    for segment in iter_segments(case):
        rows, first, last = visible_spans(case, segment, device)
        has_keys[segment.batch, rows] = last > first
    return has_keys


@_hands_over("mask")
@_keeps_small
def build_mask(case: Case, device: str) -> Tensor:
    """Return the mask of a case: bool `(batch, 1, seqlen_q, seqlen_k)`, True if a key is visible.

    A dense case's mask has a batch of 1. Rows of padding attend to nothing.
    """
    batch = 1 if case.layout == "dense" else case.batch
    mask = torch.zeros(batch, 1, case.seqlen_q, case.seqlen_k, dtype=torch.bool, device=device)
    blocks: dict[tuple[int, int], Tensor] = {}  # by size: thousands of rows may be equal
    for segment in iter_segments(case):
        if segment.batch >= batch:
            break
        q, k = size = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        if size not in blocks:
            blocks[size] = mask_block(case, torch.arange(q, device=device), q, k, 0, k)
        mask[segment.batch, 0, segment.q_start : segment.q_stop, segment.k_start : segment.k_stop] = blocks[size]
    return mask


@_hands_over("mask")
def build_mask_tensor(case: Case, device: str, dtype: torch.dtype) -> Tensor:
    """Return the mask of a case in the form of its `mask`: bool, or `dtype` values that are added to the scores."""
    mask = build_mask(case, device)
    if case.mask == "additive":
        return build_mask_bias(case, device).to(dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return mask.expand(-1, case.num_heads, -1, -1).contiguous() if case.per_head else mask


@_keeps_small
def build_mask_bias(case: Case, device: str) -> Tensor:
    """Return the values that an additive mask adds to visible keys' scores: float32 `(batch, heads or 1, …)`."""
    heads = case.num_heads if case.per_head else 1
    bias = torch.zeros(1 if case.layout == "dense" else case.batch, heads, case.seqlen_q, case.seqlen_k, device=device)
    for s in iter_segments(case):
        if s.batch >= len(bias):
            break
        rows = torch.arange(s.q_stop - s.q_start, device=device)
        block = mask_bias_block(case, rows, 0, s.k_stop - s.k_start)
        bias[s.batch, :, s.q_start : s.q_stop, s.k_start : s.k_stop] = block
    return bias


def mask_bias_block(case: Case, rows: Tensor, first: int, last: int) -> Tensor:
    """Return an additive mask's values for queries `rows` and keys first..last-1 of a document, in float32.

    The shape is `(heads or 1, rows, last - first)`. Values are from -2 to 2 in steps of 1/4, which every dtype
    represents exactly. If the case is `per_head`, each head has other values.
    """
    heads = torch.arange(case.num_heads if case.per_head else 1, device=rows.device)
    keys = torch.arange(first, last, device=rows.device)
    return ((3 * heads[:, None, None] + 5 * rows[None, :, None] + 7 * keys) % 17 - 8) / 4.0


@_hands_over("cu_seqlens")
def build_cu_seqlens(seqlens: tuple[int, ...], device: str) -> Tensor:
    """Return int32 `(documents + 1,)`: the start of each document, and the total."""
    lengths = torch.tensor((0, *seqlens), dtype=torch.int32)
    return lengths.cumsum(0, dtype=torch.int32).to(device)


@_hands_over("document positions")
def document_positions(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each token's document (-1 or -2: padding) and its position in it: int32 `(batch, seqlen)`, for q and k.

    The order is q's document, q's position, k's document, k's position. Positions are shifted so that one rule of
    distance serves every document: a key is visible if low <= k's position - q's position <= high, with
    `visible_bounds(case, 0, 0)`. Chunks are those of these positions.
    """
    q_document = torch.full((case.batch, case.seqlen_q), -1, dtype=torch.int32)
    k_document = torch.full((case.batch, case.seqlen_k), -2, dtype=torch.int32)
    q_position, k_position = torch.zeros_like(q_document), torch.zeros_like(k_document)
    for segment in iter_segments(case):
        q, k = segment.q_stop - segment.q_start, segment.k_stop - segment.k_start
        shift = diagonal_shift(case, q, k)
        q_document[segment.batch, segment.q_start : segment.q_stop] = segment.index
        k_document[segment.batch, segment.k_start : segment.k_stop] = segment.index
        q_position[segment.batch, segment.q_start : segment.q_stop] = torch.arange(q, dtype=torch.int32) + shift
        k_position[segment.batch, segment.k_start : segment.k_stop] = torch.arange(k, dtype=torch.int32)
    return q_document.to(device), q_position.to(device), k_document.to(device), k_position.to(device)


def alibi_slopes(num_heads: int, device: str) -> Tensor:
    """Return ALiBi's slopes: float32 `(num_heads,)`, 2^(-8 h / heads), h from 1.

    If the number of heads is not a power of two, the slopes are those of the power below, then every second one of the
    power above (Press et al. 2021, arXiv 2108.12409, `get_slopes`).
    """
    power = 1 << (num_heads.bit_length() - 1)
    exponents = [8.0 * (head + 1) / power for head in range(power)] + [
        4.0 * (2 * head + 1) / power for head in range(num_heads - power)
    ]
    return torch.tensor([2.0**-exponent for exponent in exponents], device=device)


@_hands_over("ALiBi bias")
def build_alibi_bias(case: Case, slopes: Tensor) -> Tensor:
    """Return ALiBi's bias of a case: `(heads, seqlen_q, seqlen_k)`, in slopes' dtype."""
    rows = torch.arange(case.seqlen_q, device=slopes.device)
    return alibi_bias_block(slopes, rows, diagonal_shift(case, case.seqlen_q, case.seqlen_k), 0, case.seqlen_k)


def alibi_bias_block(slopes: Tensor, rows: Tensor, offset: int, first: int, last: int) -> Tensor:
    """Return flash-attn's ALiBi bias `(heads, rows, last - first)`: -slope · |row + offset - key|, in slopes' dtype."""
    distance = (rows[:, None] + offset - torch.arange(first, last, device=rows.device)[None, :]).abs()
    return -slopes[:, None, None] * distance.to(slopes.dtype)
