"""Planted faults of dropout: what is dropped, by which seed, and whether each gradient drops the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attncheck.attention import masks
from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case
from tests.measure.planted.fault import Fault


class DropoutKernel:
    """Attention with dropout in plain torch, correct for any mask; its draws come from torch's generator."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.case, self.rate = inputs, inputs.case, inputs.case.dropout
        self.shape = (self.case.batch, self.case.num_heads, self.case.seqlen_q, self.case.seqlen_k)

    def draw(self) -> Tensor:
        """Return which weights are kept, as 0 and 1."""
        return (torch.rand(self.shape) >= self.rate).float()

    def scaled(self, kept: Tensor) -> Tensor:
        """Return what weights are multiplied by."""
        return kept / (1.0 - self.rate)

    def backward_masks(self, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the masks that dq, dk and dv are computed with."""
        return kept, kept, kept

    def delta(self, dp: Tensor, p: Tensor, dout: Tensor, out: Tensor) -> Tensor:
        """Return D."""
        return (dout * out).sum(-1, keepdim=True)

    def run(self) -> Outputs:
        """Run forward and backward."""
        case, io = self.case, self.inputs.q.dtype
        group = case.num_heads // case.num_kv_heads
        q, k, v, dout = (
            x.float().transpose(1, 2) for x in (self.inputs.q, self.inputs.k, self.inputs.v, self.inputs.dout)
        )
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) * case.softmax_scale
        p = torch.softmax(scores.masked_fill(~masks.build_mask(case, q.device.type), torch.finfo().min), -1)
        kept = self.draw().to(q.device)
        out = torch.matmul((p * self.scaled(kept)).to(io).float(), v)

        def heads_second(x: Tensor) -> Tensor:
            return x.to(io).transpose(1, 2)

        def ds(mask: Tensor) -> Tensor:
            dp = torch.matmul(dout, v.transpose(2, 3)) * self.scaled(mask)
            return (p * (dp - self.delta(dp, p, dout, out))).to(io).float()

        for_dq, for_dk, for_dv = (mask.to(q.device) for mask in self.backward_masks(kept))
        dq = torch.matmul(ds(for_dq), k) * case.softmax_scale
        dk = torch.matmul(ds(for_dk).transpose(2, 3), q) * case.softmax_scale
        dv = torch.matmul((p * self.scaled(for_dv)).transpose(2, 3), dout)
        dk, dv = (x.view(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in (dk, dv))
        return Outputs(heads_second(out), None, heads_second(dq), heads_second(dk), heads_second(dv))


def run_dropout(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the right kernel."""
    return DropoutKernel(inputs).run()


def _planted(
    name: str, what: str, logic: bool = True, concerns: Callable[[Case], bool] = lambda case: True, **methods: Any
) -> Fault:
    wrong = type(name, (DropoutKernel,), methods)

    def applies(case: Case) -> bool:
        is_plain = not (case.softcap or case.sinks or case.alibi or case.mask == "additive")
        return case.dropout > 0.0 and is_plain and concerns(case)

    return Fault(
        name, "dropout", what, lambda inputs, deterministic: wrong(inputs).run(), applies, logic, right=run_dropout
    )


def _nothing_dropped(kept: Tensor) -> Tensor:
    return torch.full_like(kept, 0.9)  # so that its scaled weight is about 1


def _always_the_same(self: DropoutKernel) -> Tensor:
    return (torch.rand(self.shape, generator=torch.Generator().manual_seed(0)) >= self.rate).float()


def _another_each_time(self: DropoutKernel) -> Tensor:
    generator = torch.Generator()
    generator.seed()
    return (torch.rand(self.shape, generator=generator) >= self.rate).float()


def _one_for_all_heads(self: DropoutKernel) -> Tensor:
    return (torch.rand(self.shape[0], 1, *self.shape[2:]) >= self.rate).float().expand(self.shape)


def _one_for_the_batch(self: DropoutKernel) -> Tensor:
    return (torch.rand(1, *self.shape[1:]) >= self.rate).float().expand(self.shape)


def _whole_rows(self: DropoutKernel) -> Tensor:
    return (torch.rand(*self.shape[:3], 1) >= self.rate).float().expand(self.shape)


def _one_for_four_rows(self: DropoutKernel) -> Tensor:
    """Draw as cuDNN 9.19 does: queries i, i + 2, i + 4 and i + 6 of eight drop the same keys."""
    rows = torch.arange(self.shape[2])
    return (torch.rand(self.shape) >= self.rate).float()[:, :, rows // 8 * 8 + rows % 2]


def _drawn_again(self: DropoutKernel, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return kept, kept, DropoutKernel.draw(self)


def _of_kv_heads(self: DropoutKernel, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    other = kept[:, torch.arange(kept.shape[1]) // (kept.shape[1] // self.case.num_kv_heads)]
    return kept, other, other


DROPOUT_FAULTS = (
    _planted("dropout_of_kv_heads", "dk and dv with the dropout masks of the heads whose numbers kv heads have",
             concerns=lambda case: 1 < case.num_kv_heads < case.num_heads, backward_masks=_of_kv_heads),
    _planted("dropout_not_in_forward_only", "a call without backward drops nothing",
             concerns=lambda case: not case.backward, draw=lambda self: torch.ones(self.shape),
             scaled=lambda self, kept: kept),
    _planted("dropout_of_next_row_in_windows", "dq of windows with the dropout mask of the next query",
             concerns=lambda case: case.windowed,
             backward_masks=lambda self, kept: (kept.roll(1, 2), kept, kept)),
    _planted("dropout_of_next_key_in_documents", "dv of packed documents with the dropout mask of the next key",
             concerns=lambda case: case.layout == "packed" and len(case.seqlens_q) > 1,
             backward_masks=lambda self, kept: (kept, kept, kept.roll(1, 3))),
    _planted("dropout_not_in_dq", "dq without the dropout mask",
             backward_masks=lambda self, kept: (_nothing_dropped(kept), kept, kept)),
    _planted("dropout_not_in_dk", "dk without the dropout mask",
             backward_masks=lambda self, kept: (kept, _nothing_dropped(kept), kept)),
    _planted("dropout_not_in_dv", "dv without the dropout mask",
             backward_masks=lambda self, kept: (kept, kept, _nothing_dropped(kept))),
    _planted("dropout_of_next_head_in_dk", "dk with the dropout mask of the next head",
             backward_masks=lambda self, kept: (kept, kept.roll(1, 1), kept)),
    _planted("dropout_of_next_row_in_dq", "dq with the dropout mask of the next query",
             backward_masks=lambda self, kept: (kept.roll(1, 2), kept, kept)),
    _planted("dropout_drawn_again", "backward draws its own mask", backward_masks=_drawn_again),
    _planted("dropout_not_scaled", "what is kept is not divided by the share kept", scaled=lambda self, kept: kept),
    _planted("dropout_delta_of_p", "D = rowsum(P·dP), with P as it was before dropout and dP without it",
             delta=lambda self, dp, p, dout, out: (p * dp).sum(-1, keepdim=True) * (1.0 - self.rate)),
    _planted("dropout_rate_doubled", "twice as much is dropped",
             draw=lambda self: (torch.rand(self.shape) >= 1.2 * self.rate).float()),
    _planted("dropout_seed_ignored", "the same keys are dropped under every seed", draw=_always_the_same),
    _planted("dropout_seed_not_kept", "other keys are dropped under the same seed", draw=_another_each_time),
    _planted("dropout_shared_by_heads", "every head drops the same keys", draw=_one_for_all_heads),
    _planted("dropout_shared_by_batch", "every batch row drops the same keys", draw=_one_for_the_batch),
    _planted("dropout_of_whole_rows", "a row is kept or dropped whole", draw=_whole_rows),
    _planted("dropout_shared_by_four_rows", "four queries drop the same keys", logic=False, draw=_one_for_four_rows),
    _planted("dropout_off", "nothing is dropped", draw=lambda self: torch.ones(self.shape),
             scaled=lambda self, kept: kept),
)  # fmt: skip
