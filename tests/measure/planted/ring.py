"""A correct emulation of ring attention in one process: shards, schedule, merge by LSE, travelling gradients.

As ring-flash-attention has it: rank r gets the keys of rank r - t at step t, each block's result comes back from the
kernel in the io dtype with its float32 LSE, and is merged into a float32 accumulator; gradients of blocks are in the
io dtype, their sums float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.measure.planted.emulated import Kernel, Work, runner

Part = tuple[Tensor, Tensor]  # output and LSE


class Ring(Kernel):
    """Four ranks with contiguous shards."""

    world = 4

    def shards(self, size: int) -> list[Tensor]:
        """Return the positions that each rank holds."""
        return list(torch.arange(size, device=self.inputs.device).tensor_split(self.world))

    def source(self, rank: int, step: int) -> int:
        """Return whose keys a rank believes to hold at a step."""
        return (rank - step) % self.world

    def steps(self, rank: int) -> list[int]:
        """Return the steps that a rank takes."""
        return list(range(self.world))

    def piece(self, work: Work, rank: int, step: int) -> Work | None:
        """Return the work of one rank at one step, None if its keys are not seen."""
        rows, keys = self.shards(work.q.shape[2])[rank], self.shards(work.k.shape[2])[self.source(rank, step)]
        piece = self.fetched(work, rank, step, work.rows(rows).keys(keys))
        return piece if bool(piece.mask.any()) else None

    def fetched(self, work: Work, rank: int, step: int, piece: Work) -> Work:
        """Return the piece with the keys and values that really arrived."""
        return piece

    def attend(self, work: Work) -> Part:
        """Return the merged output and LSE."""
        out = work.q.new_zeros(*work.q.shape[:3], work.v.shape[3])
        lse = work.q.new_full((*work.q.shape[:3], 1), -math.inf)
        for rank, rows in enumerate(self.shards(work.q.shape[2])):
            held: Part | None = None
            for step in self.steps(rank):
                piece = self.piece(work, rank, step)
                if piece is None or not len(rows):
                    continue
                part = self.local(piece)
                held = part if held is None else self.merge(held, part, step)
            if held is not None:
                out[:, :, rows], lse[:, :, rows] = held
        return out, lse

    def local(self, piece: Work) -> Part:
        """Return a block's output, in the io dtype, and LSE."""
        out, lse = Kernel.attend(self, piece)
        return self.rounded(out), lse

    def merge(self, held: Part, part: Part, step: int) -> Part:
        """Return two partial results as one."""
        (out, lse), (new, new_lse) = held, part
        return out - self.weight(lse, new_lse) * (out - new), self.merged_lse(lse, new_lse)

    def weight(self, lse: Tensor, new: Tensor) -> Tensor:
        """Return the share of the new part; 0 if neither saw a key."""
        return torch.sigmoid(new - lse).nan_to_num(0.0)

    def merged_lse(self, lse: Tensor, new: Tensor) -> Tensor:
        """Return the LSE of both."""
        return torch.logaddexp(lse, new)

    def gradients(self, work: Work, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, and dk and dv for every query head, gathered piece by piece."""
        work = self.backward_work(work)
        dq, dk, dv = torch.zeros_like(work.q), torch.zeros_like(work.k), torch.zeros_like(work.v)
        for rank, rows in enumerate(self.shards(work.q.shape[2])):
            for step in self.backward_steps(rank):
                piece = self.backward_piece(work, rank, step)
                if piece is None or not len(rows):
                    continue
                parts = Kernel.gradients(self, piece, lse[:, :, rows], self.piece_delta(piece, delta[:, :, rows]))
                keys = self.shards(work.k.shape[2])[self.home(rank, step)]
                part_q, part_k, part_v = (self.rounded(part) for part in parts)
                dq[:, :, rows] = self.travel_dq(dq[:, :, rows] + part_q)
                dk[:, :, keys] = self.travel_dkv(dk[:, :, keys] + part_k)
                dv[:, :, keys] = self.travel_dkv(dv[:, :, keys] + part_v)
        return dq, dk, dv

    def backward_steps(self, rank: int) -> list[int]:
        """Return the steps that a rank takes in the backward pass."""
        return list(range(self.world))

    def backward_piece(self, work: Work, rank: int, step: int) -> Work | None:
        """Return the work of one rank at one step of the backward pass."""
        return self.piece(work, rank, step)

    def piece_delta(self, piece: Work, delta: Tensor) -> Tensor:
        """Return D of a piece's rows: that of the whole output."""
        return delta

    def home(self, rank: int, step: int) -> int:
        """Return the rank to which the gradients of this step's keys belong."""
        return self.source(rank, step)

    def travel_dq(self, dq: Tensor) -> Tensor:
        """Return the accumulator of dq as it is kept."""
        return dq

    def travel_dkv(self, x: Tensor) -> Tensor:
        """Return the accumulator of dk or dv as it is sent on."""
        return x


class Zigzag(Ring):
    """Each rank holds one chunk from the front and its mirror image from the back."""

    def shards(self, size: int) -> list[Tensor]:
        """Return the positions that each rank holds."""
        chunks = torch.arange(size, device=self.inputs.device).tensor_split(2 * self.world)
        return [torch.cat((chunks[rank], chunks[-1 - rank])) for rank in range(self.world)]


class Stripe(Ring):
    """Each rank holds every fourth position."""

    def shards(self, size: int) -> list[Tensor]:
        """Return the positions that each rank holds."""
        positions = torch.arange(size, device=self.inputs.device)
        return [positions[rank :: self.world] for rank in range(self.world)]


run_ring = runner(Ring)
run_zigzag = runner(Zigzag)
run_stripe = runner(Stripe)
