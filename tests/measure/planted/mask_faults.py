"""Planted faults in what a query sees: diagonals, windows, blocks, documents, padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.core.cases import UNBOUNDED, Case, iter_segments, visible_bounds
from tests.measure.planted.emulated import Kernel, Work
from tests.measure.planted.fault import Fault, built, mask_fault, planted

BLOCK = 64
Altered = Callable[[Case, Tensor], Tensor]
Row = tuple[str, str, Altered]  # name, what, what becomes of the mask


def _limited(case: Case, mask: Tensor, low: int, high: int) -> Tensor:
    """Return the mask with its diagonals moved by `low` and `high`."""

    def limits(q: int, k: int) -> tuple[int, int]:
        first, last = visible_bounds(case, q, k)
        return first + low, last + high

    return built(case, mask.device, limits)


def _as(mask: Tensor, case: Case) -> Tensor:
    return built(case, mask.device, lambda q, k: visible_bounds(case, q, k))


def _moved(bound: str, low: int, high: int) -> Altered:
    """Return what moves the diagonals if the causal mask, the left or the right side of a window binds."""

    def altered(case: Case, mask: Tensor) -> Tensor:
        left, right = case.window_size
        binds = {"causal": case.causal, "left": left != UNBOUNDED, "right": right != UNBOUNDED and not case.causal}
        return _limited(case, mask, low, high) if binds[bound] else mask

    return altered


def _aligned(case: Case, mask: Tensor) -> Tensor:
    return _as(mask, replace(case, alignment="top_left" if case.alignment == "bottom_right" else "bottom_right"))


def _swapped_alignment(alignment: str) -> Altered:
    return lambda case, mask: _aligned(case, mask) if case.alignment == alignment else mask


def _last_block_full(case: Case, mask: Tensor) -> Tensor:
    if case.causal and case.layout == "dense":
        mask[..., (case.seqlen_k - 1) // BLOCK * BLOCK :] = True
    return mask


def _tile_dropped(case: Case, mask: Tensor) -> Tensor:
    if case.layout == "dense":
        mask[..., BLOCK : 2 * BLOCK, :BLOCK] = False
    return mask


def _tail_row(case: Case, mask: Tensor) -> Tensor:
    row = case.seqlen_q // 2
    mask[..., row, :] |= mask[..., row, :].roll(1, -1)
    return mask


def _one_head(case: Case, mask: Tensor) -> Tensor:
    if not case.causal:
        return mask
    per_head = mask.expand(-1, case.num_heads, -1, -1).clone()
    per_head[:, -1] = _limited(case, mask, 0, 1)[: len(mask), 0]
    return per_head


def _one_batch_row(case: Case, mask: Tensor) -> Tensor:
    if case.batch == 1 or not case.causal:
        return mask
    per_row = mask.expand(case.batch, -1, -1, -1).clone()
    per_row[-1] = _limited(case, mask, 0, 1)[-1]
    return per_row


def _first_row_for_all(case: Case, mask: Tensor) -> Tensor:
    return mask[:1].expand_as(mask).clone() if case.padded else mask


def _remainder(case: Case, mask: Tensor) -> Tensor:
    for s in iter_segments(case):
        if (s.k_stop - s.k_start) % BLOCK == 1:
            mask[s.batch if len(mask) > 1 else 0, :, s.q_start : s.q_stop, s.k_stop - 1] = False
    return mask


def _padding_attended(layout: str) -> Altered:
    def altered(case: Case, mask: Tensor) -> Tensor:
        if case.layout != layout:
            return mask
        q, k = ((size,) * case.batch for size in (case.seqlen_q, case.seqlen_k))
        unpadded = _as(mask, replace(case, layout="dense", seqlens_q=q, seqlens_k=k))
        return unpadded & mask.any(-1, keepdim=True)

    return altered


def _documents_ignored(case: Case, mask: Tensor) -> Tensor:
    if case.layout != "packed":
        return mask
    return _as(mask, replace(case, seqlens_q=(case.seqlen_q,), seqlens_k=(case.seqlen_k,)))


def _shifted(seqlens: tuple[int, ...], by: int, which: slice) -> tuple[int, ...]:
    edges = [0, *itertools.accumulate(seqlens)]
    inner = range(1, len(edges) - 1)[which]
    moved = [min(max(edge + by * (index in inner), 0), edges[-1]) for index, edge in enumerate(edges)]
    return tuple(stop - start for start, stop in itertools.pairwise(moved))


def _boundaries(by: int, which: slice) -> Altered:
    """Return what moves the inner boundaries of documents, as a wrong cu_seqlens does."""

    def altered(case: Case, mask: Tensor) -> Tensor:
        if case.layout != "packed":
            return mask
        q, k = (_shifted(seqlens, by, which) for seqlens in (case.seqlens_q, case.seqlens_k))
        return _as(mask, replace(case, seqlens_q=q, seqlens_k=k))

    return altered


def _clipped(case: Case, mask: Tensor) -> Tensor:
    for s in iter_segments(case):
        if case.layout == "packed":
            mask[0, 0, s.q_start : s.q_stop, s.k_start + 2 * BLOCK : s.k_stop] = False
    return mask


def _after_empty(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel for which a document begins if the one before the empty one began."""
    documents = list(iter_segments(case))
    for before, empty, after in zip(documents, documents[1:], documents[2:]):
        if case.layout == "packed" and empty.k_start == empty.k_stop:
            mask[0, 0, after.q_start : after.q_stop, before.k_start : before.k_stop] = True
    return mask


def _without_queries_last(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel that does not count the keys of a document without queries."""
    if case.layout != "packed" or all(case.seqlens_q) or case.attention_chunk:
        return mask
    q, k = zip(*sorted(zip(case.seqlens_q, case.seqlens_k), key=lambda pair: not pair[0]))
    return _as(mask, replace(case, seqlens_q=q, seqlens_k=k))


def _same_total(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel for which q and k of one total length have one cu_seqlens."""
    if case.layout != "packed" or case.seqlen_q != case.seqlen_k or case.attention_chunk:
        return mask
    return _as(mask, replace(case, seqlens_k=case.seqlens_q))


def _end_of_the_buffer(case: Case, mask: Tensor) -> Tensor:
    """Return the mask of a kernel that reads the last keys only, as many as one document's window needs."""
    left = case.window_size[0]
    if case.layout == "packed" and left >= 0:
        kept = -(-(max(256, case.seqlen_q) + left + 1) // 256) * 256
        mask[..., : max(0, case.seqlen_k - kept)] = False
    return mask


def _zero_tail(self: Kernel) -> Work:
    """Return the work with keys of zero up to the next block, which nobody masks."""
    work = Kernel.load(self)
    extra = -work.k.shape[2] % BLOCK
    pad = torch.nn.functional.pad
    k, v = (pad(x, (0, 0, 0, extra)) for x in (work.k, work.v))
    bias = None if work.bias is None else pad(work.bias, (0, extra))
    return replace(work, k=k, v=v, mask=pad(work.mask, (0, extra), value=True), bias=bias)


def _cut(self: Kernel, x: Tensor) -> Tensor:
    return Kernel.group_sum(self, x)[:, :, : self.case.seqlen_k]


def _has_tail(case: Case) -> bool:
    return case.layout == "dense" and not case.causal and case.seqlen_k % BLOCK > 0


DIAGONALS: tuple[Row, ...] = (
    ("causal_ignored", "no causal mask", lambda case, mask: _as(mask, replace(case, causal=False))),
    ("causal_future", "causal mask off by one: sees the next key", _moved("causal", 0, 1)),
    ("causal_strict", "causal mask off by one: does not see its own key", _moved("causal", 0, -1)),
    ("top_left_for_bottom_right", "diagonal through the other corner", _swapped_alignment("bottom_right")),
    ("bottom_right_for_top_left", "diagonal through the other corner", _swapped_alignment("top_left")),
    ("window_ignored", "no window", lambda case, mask: _as(mask, replace(case, window_size=(UNBOUNDED, UNBOUNDED)))),
    ("window_left_plus_1", "window one key too wide on the left", _moved("left", -1, 0)),
    ("window_left_minus_1", "window one key too narrow on the left", _moved("left", 1, 0)),
    ("window_right_plus_1", "window one key too wide on the right", _moved("right", 0, 1)),
    ("window_right_minus_1", "window one key too narrow on the right", _moved("right", 0, -1)),
    ("causal_ignored_in_last_block", "last key block not masked", _last_block_full),
)
PLACES: tuple[Row, ...] = (
    ("last_block_dropped", "last key block not visited", lambda case, mask: _without(mask, case, BLOCK)),
    ("last_key_dropped", "last key not visited", lambda case, mask: _without(mask, case, 1)),
    ("one_tile_dropped", "one tile of queries and keys not visited", _tile_dropped),
    ("one_query_row_sees_one_more", "a mask wrong in the middle query row only", _tail_row),
    ("one_head_sees_the_next_key", "causal mask off by one in the last head only", _one_head),
    ("one_batch_row_sees_the_next_key", "causal mask off by one in the last batch row only", _one_batch_row),
    ("remainder_1_dropped", "last key lost if the length is a multiple of 64 plus 1", _remainder),
)
LAYOUTS: tuple[Row, ...] = (
    ("right_padding_attended", "padding on the right attended", _padding_attended("right_padded")),
    ("left_padding_attended", "padding on the left attended", _padding_attended("left_padded")),
    ("first_rows_padding_for_all", "the padding mask of batch row 0 used for every row", _first_row_for_all),
    ("documents_ignored", "a packed row taken for one document", _documents_ignored),
    ("document_boundary_plus_1", "cu_seqlens too large by one", _boundaries(1, slice(None))),
    ("document_boundary_minus_1", "cu_seqlens too small by one", _boundaries(-1, slice(None))),
    ("one_document_boundary_plus_1", "one entry of cu_seqlens too large by one", _boundaries(1, slice(-1, None))),
    ("max_seqlen_too_small", "keys past max_seqlen of 128 not visited", _clipped),
    ("document_after_empty_merged", "the document after an empty one sees the one before it", _after_empty),
    ("keys_without_queries_not_counted", "cu_seqlens_k without documents that have only keys", _without_queries_last),
    ("window_from_the_buffers_end", "keys lost that one document's window would not need", _end_of_the_buffer),
    ("one_cu_seqlens_for_one_total", "cu_seqlens_q read for k if the totals are equal", _same_total),
)


def _without(mask: Tensor, case: Case, keys: int) -> Tensor:
    if case.layout == "dense" and case.seqlen_k > keys:
        first = (case.seqlen_k - 1) // keys * keys
        mask[..., first:] = False
    return mask


def _all(family: str, table: tuple[Row, ...]) -> tuple[Fault, ...]:
    return tuple(mask_fault(name, family, what, altered) for name, what, altered in table)


MASK_FAULTS = (
    *_all("mask", (*DIAGONALS, *PLACES)),
    *_all("layout", LAYOUTS),
    planted("tail_of_zeros", "mask", "keys beyond the end read as zeros", _has_tail, load=_zero_tail, group_sum=_cut),
)
