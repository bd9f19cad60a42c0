"""Correct attention kernels in plain torch, which round if a FlashAttention-class kernel rounds.

Scores, running maximum and sums are float32; P and dS are rounded to the io dtype before their matmul, as are the
results; D = rowsum(dO·O) takes the rounded O; the backward is written by hand. Every step is a method, so that a
planted fault is a kernel with one of them replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs

Run = Callable[[Inputs, bool], Outputs]


@dataclass(frozen=True)
class Work:
    """What a kernel computes on: float32 `(batch, num_heads, seqlen, d)`, kv heads spread over the query heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    mask: Tensor  # bool (batch or 1, heads or 1, seqlen_q, seqlen_k)
    bias: Tensor | None  # ALiBi's, (1, num_heads, seqlen_q, seqlen_k)

    def rows(self, index: Tensor) -> Work:
        """Return the same work for some query rows only."""
        bias = None if self.bias is None else self.bias[:, :, index]
        return replace(self, q=self.q[:, :, index], dout=self.dout[:, :, index], mask=self.mask[:, :, index], bias=bias)

    def keys(self, index: Tensor) -> Work:
        """Return the same work for some keys only."""
        bias = None if self.bias is None else self.bias[..., index]
        return replace(self, k=self.k[:, :, index], v=self.v[:, :, index], mask=self.mask[..., index], bias=bias)


class Kernel:
    """A fused kernel with key blocks of 64, correct."""

    block = 64

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.case = inputs, inputs.case
        self.io = inputs.q.dtype

    def run(self) -> Outputs:
        """Run forward and, where the case asks, backward."""
        work = self.load()
        out, lse = self.with_sinks(*self.attend(work))
        out = self.rounded(out)
        answer = Outputs(out.to(self.io).transpose(1, 2).contiguous(), lse[..., 0].contiguous())
        if self.case.backward:
            lse_used, delta = self.lse_for_backward(lse), self.delta(work, out)
            dq, dk, dv = (self.rounded(x) for x in self.gradients(work, lse_used, delta))
            dq, dk, dv = (x.to(self.io).transpose(1, 2) for x in (dq, self.group_sum(dk), self.group_sum(dv)))
            answer = replace(answer, dq=dq, dk=dk, dv=dv, dsinks=self.sink_gradient(lse_used, delta))
        return self.returned(answer)

    # What it reads.

    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, v, dout as they lie in memory."""
        return self.inputs.q, self.inputs.k, self.inputs.v, self.inputs.dout

    def load(self) -> Work:
        """Return the tensors heads first, masks and bias."""
        q, k, v, dout = (x.transpose(1, 2).float() for x in self.read())
        heads = self.kv_heads()
        return Work(q, k[:, heads], v[:, heads], dout, self.mask(), self.bias())

    def kv_heads(self) -> Tensor:
        """Return the kv head of each query head."""
        return torch.arange(self.case.num_heads, device=self.inputs.device) // self.group()

    def group(self) -> int:
        """Return how many query heads share a kv head."""
        return self.case.num_heads // self.case.num_kv_heads

    def mask(self) -> Tensor:
        """Return where a key is seen."""
        return masks.build_mask(self.case, self.inputs.device)

    def slopes(self) -> Tensor | None:
        """Return ALiBi's slopes."""
        return self.inputs.slopes

    def bias(self) -> Tensor | None:
        """Return ALiBi's bias, or an additive mask's."""
        if self.case.mask == "additive":
            return masks.build_mask_bias(self.case, self.inputs.device)
        slopes, case = self.slopes(), self.case
        if slopes is None:
            return None
        bias = torch.zeros(case.batch, case.num_heads, case.seqlen_q, case.seqlen_k, device=slopes.device)
        return bias + masks.build_alibi_bias(case, slopes)

    def scale(self) -> float:
        """Return the softmax scale."""
        return self.case.softmax_scale

    def sinks(self) -> Tensor | None:
        """Return the sinks, one for each head."""
        return self.inputs.sinks

    # Forward.

    def blocks(self, work: Work) -> list[slice]:
        """Return the key blocks that the forward pass visits, in order."""
        size = work.k.shape[2]
        return [slice(start, min(start + self.block, size)) for start in range(0, size, self.block)]

    def key_tile(self, work: Work, block: slice) -> Tensor:
        """Return the keys of a block."""
        return work.k[:, :, block]

    def value_tile(self, work: Work, block: slice) -> Tensor:
        """Return the values of a block."""
        return work.v[:, :, block]

    def products(self, work: Work, block: slice) -> Tensor:
        """Return scaled q·k of a block."""
        return torch.matmul(work.q, self.key_tile(work, block).transpose(2, 3)) * self.scale()

    def capped(self, raw: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the soft-capped scores and their derivative."""
        if not self.case.softcap:
            return raw, None
        tanh = torch.tanh(raw / self.case.softcap)
        return tanh * self.case.softcap, 1.0 - tanh.square()

    def scores(self, work: Work, block: slice) -> tuple[Tensor, Tensor | None]:
        """Return the masked scores of a block, and the soft cap's derivative."""
        s, slope = self.capped(self.products(work, block))
        if work.bias is not None:
            s = s + work.bias[..., block]
        return s.masked_fill(~work.mask[..., block], -math.inf), slope

    def attend(self, work: Work) -> tuple[Tensor, Tensor]:
        """Return the output and the LSE `(batch, num_heads, seqlen_q, 1)` in float32, sinks left out."""
        shape = work.q.shape[:3]
        top = work.q.new_full((*shape, 1), -math.inf)
        total = work.q.new_zeros(*shape, 1)
        out = work.q.new_zeros(*shape, work.v.shape[3])
        for block in self.blocks(work):
            s, _ = self.scores(work, block)
            higher = torch.maximum(top, s.amax(-1, keepdim=True))
            shift = self.subtracted(higher)
            p = self.exp(s - shift)
            shrink = torch.exp(self.subtracted(top).masked_fill(top == -math.inf, -math.inf) - shift)
            total = self.add_sum(total, shrink, p)
            out = self.add_out(out, shrink, torch.matmul(self.rounded_p(p), self.value_tile(work, block)))
            top = higher
        return out / total.masked_fill(total == 0.0, 1.0), self.log_sum(self.subtracted(top), total)

    def subtracted(self, top: Tensor) -> Tensor:
        """Return what is subtracted from the scores: their maximum so far, 0 if no key was seen."""
        return top.masked_fill(top == -math.inf, 0.0)

    def exp(self, x: Tensor) -> Tensor:
        """Return the kernel's exponential."""
        return torch.exp(x)

    def add_sum(self, total: Tensor, shrink: Tensor, p: Tensor) -> Tensor:
        """Return the softmax sum with a block added."""
        return total * shrink + p.sum(-1, keepdim=True)

    def add_out(self, out: Tensor, shrink: Tensor, product: Tensor) -> Tensor:
        """Return the output accumulator with a block added."""
        return out * shrink + product

    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        """Return the LSE."""
        return top + torch.log(total)

    def with_sinks(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and LSE with the sinks in the softmax's sum."""
        sinks = self.sinks()
        if sinks is None:
            return out, lse
        lse_with_sinks = torch.logaddexp(lse, sinks[None, :, None, None].expand_as(lse))
        return out * torch.exp(lse - lse_with_sinks), lse_with_sinks

    # Backward.

    def lse_for_backward(self, lse: Tensor) -> Tensor:
        """Return the LSE that the backward pass reads."""
        return lse

    def delta(self, work: Work, out: Tensor) -> Tensor:
        """Return D = rowsum(dO·O)."""
        return (work.dout * out).sum(-1, keepdim=True)

    def backward_blocks(self, work: Work) -> list[slice]:
        """Return the key blocks that the backward pass visits."""
        return Kernel.blocks(self, work)

    def backward_work(self, work: Work) -> Work:
        """Return what the backward pass reads."""
        return work

    def gradients(self, work: Work, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, and dk and dv for every query head."""
        work = self.backward_work(work)
        dq, dk, dv = torch.zeros_like(work.q), torch.zeros_like(work.k), torch.zeros_like(work.v)
        for block in self.backward_blocks(work):
            p, ds = self.p_and_ds(work, block, lse, delta)
            dq = self.add_dq(dq, torch.matmul(ds, self.key_tile(work, block)), block)
            dk[:, :, block] = self.sum_dk(ds, work.q)
            dv[:, :, block] = self.sum_dv(self.rounded_p(p), work.dout)
        return self.scaled_dq(dq), self.scaled_dk(dk), dv

    def p_and_ds(self, work: Work, block: slice, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return P and the rounded dS of a block."""
        s, slope = self.scores(work, block)
        p = self.exp(s - lse.masked_fill(lse == -math.inf, 0.0))
        ds = p * (torch.matmul(work.dout, self.value_tile(work, block).transpose(2, 3)) - delta)
        return p, self.rounded_ds(ds if slope is None else self.uncapped(ds, slope))

    def uncapped(self, ds: Tensor, slope: Tensor) -> Tensor:
        """Return dS before the soft cap."""
        return ds * slope

    def add_dq(self, dq: Tensor, part: Tensor, block: slice) -> Tensor:
        """Return the accumulator of dq with the part of a key block added."""
        return dq + part

    def sum_dk(self, ds: Tensor, q: Tensor) -> Tensor:
        """Return dSᵀ q of a block."""
        return torch.matmul(ds.transpose(2, 3), q)

    def sum_dv(self, p: Tensor, dout: Tensor) -> Tensor:
        """Return Pᵀ dO of a block."""
        return torch.matmul(p.transpose(2, 3), dout)

    def scaled_dq(self, dq: Tensor) -> Tensor:
        """Return dq with the softmax scale."""
        return dq * self.scale()

    def scaled_dk(self, dk: Tensor) -> Tensor:
        """Return dk with the softmax scale."""
        return dk * self.scale()

    def group_sum(self, x: Tensor) -> Tensor:
        """Return the gradient of the kv heads from those of the query heads that share them."""
        return x.reshape(x.shape[0], self.case.num_kv_heads, self.group(), *x.shape[2:]).sum(2)

    def sink_gradient(self, lse: Tensor, delta: Tensor) -> Tensor | None:
        """Return the gradient of the sinks."""
        sinks = self.sinks()
        if sinks is None:
            return None
        return -(torch.exp(sinks[None, :, None, None] - lse) * delta).sum((0, 2, 3))

    # Rounding, and what is handed back.

    def rounded(self, x: Tensor) -> Tensor:
        """Return x rounded to the io dtype, in float32."""
        return x.to(self.io).float()

    def rounded_p(self, p: Tensor) -> Tensor:
        """Return P as the matmul takes it."""
        return self.rounded(p)

    def rounded_ds(self, ds: Tensor) -> Tensor:
        """Return dS as the matmul takes it."""
        return self.rounded(ds)

    def returned(self, answer: Outputs) -> Outputs:
        """Return the answer as the caller gets it."""
        return answer


class WideKernel(Kernel):
    """Key blocks of 128."""

    block = 128


class SplitKV(Kernel):
    """Keys in four parts, as for decoding; float32 partial results are merged by their LSE."""

    def attend(self, work: Work) -> tuple[Tensor, Tensor]:
        """Return the merged output and LSE."""
        positions = torch.arange(work.k.shape[2], device=work.k.device)
        parts = [Kernel.attend(self, work.keys(part)) for part in positions.tensor_split(4) if len(part)]
        outs, sums = torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])
        lse = torch.logsumexp(sums, 0)
        weights = torch.exp(sums - lse.masked_fill(lse == -math.inf, 0.0))
        return (outs * weights).sum(0), lse


class SequentialMerge(SplitKV):
    """Keys in parts of 16, merged one after another as a ring merges them."""

    def attend(self, work: Work) -> tuple[Tensor, Tensor]:
        """Return the merged output and LSE."""
        positions = torch.arange(work.k.shape[2], device=work.k.device)
        out, lse = Kernel.attend(self, work.keys(positions[:16]))
        for part in positions[16:].split(16):
            part_out, part_lse = Kernel.attend(self, work.keys(part))
            merged = torch.logaddexp(lse, part_lse)
            floor = merged.masked_fill(merged == -math.inf, 0.0)
            out = out * torch.exp(lse - floor) + part_out * torch.exp(part_lse - floor)
            lse = merged
        return out, lse


class ReversedBlocks(Kernel):
    """Key blocks of 32 from the last to the first, in both passes."""

    block = 32

    def blocks(self, work: Work) -> list[slice]:
        """Return the blocks from the last on."""
        return super().blocks(work)[::-1]

    def backward_blocks(self, work: Work) -> list[slice]:
        """Return the same order."""
        return self.blocks(work)


class Float64Inside(Kernel):
    """Nothing but the results is rounded: float64 inside, as a CPU kernel or an emulation of one may compute."""

    def load(self) -> Work:
        """Return the tensors in float64."""
        work = super().load()
        return replace(work, q=work.q.double(), k=work.k.double(), v=work.v.double(), dout=work.dout.double())

    def rounded(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x


def runner(kernel: type[Kernel]) -> Run:
    """Return `run(inputs, deterministic)` of a kernel; these have one summation order, deterministic or not."""

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        return kernel(inputs).run()

    return run


run_blocks_of_64 = runner(Kernel)
run_blocks_of_128 = runner(WideKernel)
run_split_kv = runner(SplitKV)
run_sequential_merge = runner(SequentialMerge)
run_reversed_blocks = runner(ReversedBlocks)
run_float64_inside = runner(Float64Inside)
