"""Planted faults of context parallelism: merge, schedule, shards and gradients of a ring; Ulysses' all-to-all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.core.cases import Case
from tests.measure.planted.emulated import Kernel, Work
from tests.measure.planted.fault import Fault, planted, square
from tests.measure.planted.ring import Part, Ring, Stripe, Zigzag


def ring_case(case: Case) -> bool:
    """Return whether every rank of a ring has keys to fetch from every rank before it."""
    return square(case) and not case.windowed


def _causal(case: Case) -> bool:
    return ring_case(case) and case.causal


def _differing_rows(case: Case) -> bool:
    return ring_case(case) and case.backward


def _ring(
    name: str, what: str, applies: Callable[[Case], bool] = ring_case, base: type[Kernel] = Ring, **methods: Any
) -> Fault:
    return planted(name, "ring", what, applies, base, **methods)


def _merged(name: str, what: str, weight: Callable[[Tensor, Tensor], Tensor]) -> Fault:
    return _ring(name, what, weight=lambda self, lse, new: weight(lse, new).nan_to_num(0.0))


def _summed(self: Ring, held: Part, part: Part, step: int) -> Part:
    return held[0] + part[0], torch.logaddexp(held[1], part[1])


def _twice(self: Ring, held: Part, part: Part, step: int) -> Part:
    once = Ring.merge(self, held, part, step)
    return Ring.merge(self, once, part, step) if step == 1 else once


def _head_order(self: Ring, held: Part, part: Part, step: int) -> Part:
    return Ring.merge(self, held, (part[0], part[1].roll(1, 1)), step)


def _overflowing(self: Ring, lse: Tensor, new: Tensor) -> Tensor:
    return lse + torch.log(1.0 + torch.exp(new - lse))


def _overflows(case: Case) -> bool:
    return ring_case(case) and case.values == "ramp" and case.seqlen_q >= 512


def _stale(first: int, keys: bool, share: float = 1.0, back: int = 1) -> Any:
    """Return what fetches at step `first` the keys (and values) of `back` steps before."""

    def fetched(self: Ring, work: Work, rank: int, step: int, piece: Work) -> Work:
        if step != first and first >= 0:
            return piece
        earlier = self.shards(work.k.shape[2])[self.source(rank, step - back if first >= 0 else 0)]
        size = piece.k.shape[2]
        tokens = earlier[torch.arange(int(size * share), device=earlier.device).clamp_max(len(earlier) - 1)]
        k = torch.cat((work.k[:, :, tokens], piece.k[:, :, len(tokens) :]), 2)
        v = torch.cat((work.v[:, :, tokens], piece.v[:, :, len(tokens) :]), 2)
        return replace(piece, k=k if keys else piece.k, v=v)

    return fetched


def _backward_stale(self: Ring, work: Work, rank: int, step: int) -> Work | None:
    piece = Ring.piece(self, work, rank, step)
    return None if piece is None else _stale(-1, True)(self, work, rank, step, piece)


def _masked(change: Callable[[Ring, int, int, Work], Tensor | None]) -> Any:
    """Return what computes a rank's piece with another mask."""

    def fetched(self: Ring, work: Work, rank: int, step: int, piece: Work) -> Work:
        mask = change(self, rank, step, piece)
        return piece if mask is None else replace(piece, mask=mask.expand_as(piece.mask))

    return fetched


def _triangle(piece: Work, diagonal: int = 0) -> Tensor:
    return torch.ones_like(piece.mask[0, 0]).tril(diagonal)


def _diagonal_full(self: Ring, rank: int, step: int, piece: Work) -> Tensor | None:
    return torch.ones_like(piece.mask) if step == 0 else None


def _all_diagonal(self: Ring, rank: int, step: int, piece: Work) -> Tensor | None:
    return _triangle(piece) if step <= rank else None


def _future(self: Ring, rank: int, step: int, piece: Work) -> Tensor | None:
    return torch.ones_like(piece.mask) if step > rank else None


def _stripe_unshifted(self: Ring, rank: int, step: int, piece: Work) -> Tensor | None:
    return _triangle(piece)


def _window_by_block(self: Ring, rank: int, step: int, piece: Work) -> Tensor | None:
    """Return the window of positions counted within each block."""
    left = self.case.window_size[0]
    if step > rank or left < 0:
        return None
    distance = torch.arange(piece.k.shape[2], device=piece.k.device)[None] - torch.arange(
        piece.q.shape[2], device=piece.k.device
    ).unsqueeze(1)
    return (distance >= -left) & (distance <= (0 if step == 0 else self.case.seqlen_k))


def _windowed(case: Case) -> bool:
    return square(case) and case.causal and 0 <= case.window_size[0] < case.seqlen_q // 2


def _as_contiguous(self: Ring, work: Work, rank: int, step: int, piece: Work) -> Work:
    """Return a piece of this layout's data with the mask of contiguous shards."""
    shards = Ring.shards(self, work.q.shape[2])
    rows, keys = shards[rank][: piece.q.shape[2]], shards[self.source(rank, step)][: piece.k.shape[2]]
    mask = torch.zeros_like(piece.mask)
    mask[..., : len(rows), : len(keys)] = work.mask[:, :, rows][..., keys]
    return replace(piece, mask=mask)


def _wrong_way(self: Ring, work: Work, rank: int, step: int, piece: Work) -> Work:
    keys = self.shards(work.k.shape[2])[(rank + step) % self.world]
    tokens = keys[torch.arange(piece.k.shape[2], device=keys.device) % len(keys)]
    return replace(piece, k=work.k[:, :, tokens], v=work.v[:, :, tokens])


def _chunk_delta(self: Ring, piece: Work, delta: Tensor) -> Tensor:
    return self.delta(piece, self.local(piece)[0])


def _even(case: Case) -> bool:
    return ring_case(case) and case.seqlen_q % Ring.world == 0


def _misplaced(self: Ring, answer: Outputs) -> Outputs:
    order = torch.cat(self.shards(self.case.seqlen_q))
    return replace(answer, out=answer.out[:, order])


MERGE = (
    _merged("merge_average", "blocks averaged, whatever their LSE", lambda lse, new: torch.full_like(lse, 0.5)),
    _merged("merge_base_2", "weights to base 2", lambda lse, new: torch.sigmoid((new - lse) * math.log(2.0))),
    _merged("merge_sign", "weights swapped", lambda lse, new: torch.sigmoid(lse - new)),
    _merged("merge_max", "the block with the larger LSE wins", lambda lse, new: (new > lse).float()),
    _ring("merge_sum", "blocks added", merge=_summed),
    _ring("merge_twice", "the second block merged twice", merge=_twice),
    _ring("merge_lse_head_order", "LSE of the head before",
          lambda c: ring_case(c) and c.num_heads > 1, merge=_head_order),
    _ring("merge_lse_stale", "LSE stays that of the first block", merged_lse=lambda self, lse, new: lse),
    _ring("merge_exp_overflow", "log(1 + exp(x)) overflows if block LSEs are 90 apart",
          _overflows, merged_lse=_overflowing),
)  # fmt: skip
SCHEDULE = (
    _ring("ring_step_missing", "the last step is not taken", steps=lambda self, rank: list(range(self.world - 1))),
    _ring("ring_future_not_skipped", "blocks of the future attended", _causal, fetched=_masked(_future)),
    _ring("ring_diagonal_full", "the own block not masked", _causal, fetched=_masked(_diagonal_full)),
    _ring("ring_diagonal_everywhere", "every block masked as the own one", _causal, fetched=_masked(_all_diagonal)),
    _ring("ring_wrong_direction", "keys of rank r + t for those of r - t", fetched=_wrong_way),
    _ring("ring_stale_kv", "step 1 computes on the keys of step 0", fetched=_stale(1, True)),
    _ring("ring_stale_kv_all", "every step computes on the keys of step 0", fetched=_stale(-1, True)),
    _ring("ring_stale_half", "half of step 1's keys are those of step 0", fetched=_stale(1, True, 0.5)),
    _ring("ring_stale_v", "step 1 computes on the values of step 0", fetched=_stale(1, False)),
    _ring("ring_window_per_block", "window counted within each block", _windowed, fetched=_masked(_window_by_block)),
    _ring("zigzag_mask_contiguous", "zigzag shards, contiguous mask", _causal, Zigzag, fetched=_as_contiguous),
    _ring("stripe_mask_contiguous", "striped shards, contiguous mask", _causal, Stripe, fetched=_as_contiguous),
    _ring("stripe_not_shifted", "later stripes see their own index",
          _causal, Stripe, fetched=_masked(_stripe_unshifted)),
    _ring("zigzag_order", "outputs left in zigzag order", ring_case, Zigzag, returned=_misplaced),
)  # fmt: skip


def _backward_masked(change: Callable[[Ring, int, int, Work], Tensor | None]) -> Any:
    def backward_piece(self: Ring, work: Work, rank: int, step: int) -> Work | None:
        piece = Ring.piece(self, work, rank, step)
        return None if piece is None else _masked(change)(self, work, rank, step, piece)

    return backward_piece


def _causal_backward(case: Case) -> bool:
    return _causal(case) and case.backward


GRADIENTS = (
    _ring("ring_backward_diagonal_full", "the own block not masked in the backward", _causal_backward,
          backward_piece=_backward_masked(_diagonal_full)),
    _ring("ring_backward_last_step_lost", "gradients of the last step lost", _differing_rows,
          backward_steps=lambda self, rank: list(range(self.world - 1))),
    _ring("ring_gradients_to_wrong_rank", "dk and dv one rank too far", lambda c: _even(c) and c.backward,
          home=lambda self, rank, step: (rank - step + 1) % self.world),
    _ring("ring_backward_block_delta", "D of each block's own output (tt-metal #53205)",
          _differing_rows, piece_delta=_chunk_delta),
    _ring("ring_backward_stale_kv", "backward on the keys of step 0 (diffusers #14265)", _differing_rows,
          backward_piece=_backward_stale),
)  # fmt: skip


def _sequence_order(x: Tensor) -> Tensor:
    """Return the shards of the sequence in the order 1, 2, 3, 0."""
    parts = x.tensor_split(4, 1)
    return torch.cat((*parts[1:], parts[0]), 1)


def _head_exchange(x: Tensor) -> Tensor:
    """Return heads as an all-to-all leaves them that transposes ranks and heads."""
    heads = torch.arange(x.shape[2], device=x.device)
    return x[:, :, heads.view(2, -1).T.reshape(-1)]


def _wrong_gradients(self: Kernel, answer: Outputs) -> Outputs:
    return answer if answer.dq is None else replace(answer, dq=_sequence_order(answer.dq))


def _exchangeable(case: Case) -> bool:
    return square(case) and case.num_heads >= 4 and case.num_heads % 2 == 0


ULYSSES = (
    planted("ulysses_sequence_order", "ulysses", "shards of the sequence out of order", square,
            returned=lambda self, answer: replace(answer, out=_sequence_order(answer.out))),
    planted("ulysses_head_order", "ulysses", "heads out of order after the all-to-all", _exchangeable,
            returned=lambda self, answer: replace(answer, out=_head_exchange(answer.out))),
    planted("ulysses_backward_sequence_order", "ulysses", "shards of dq out of order",
            lambda case: square(case) and case.backward, returned=_wrong_gradients),
)  # fmt: skip

RING_FAULTS = (*MERGE, *SCHEDULE, *GRADIENTS, *ULYSSES)
