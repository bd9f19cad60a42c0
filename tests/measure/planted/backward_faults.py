"""Planted faults in gradients only: the forward pass of each is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.core.cases import Case, visible_bounds
from tests.measure.planted.emulated import Kernel, Work
from tests.measure.planted.fault import Fault, backward, changed, planted
from tests.measure.planted.score_faults import blocks_seen


def _wrong(name: str, what: str, applies: Callable[[Case], bool] = backward, **methods: Any) -> Fault:
    return planted(name, "backward", what, lambda case: applies(case) and backward(case), **methods)


def _one_nan(x: Tensor) -> Tensor:
    x[-1, x.shape[1] // 2, -1, 0] = float("nan")
    return x


def _last_row_lost(x: Tensor) -> Tensor:
    x[:, -1] = 0.0
    return x


def _one_batch_row_lost(x: Tensor) -> Tensor:
    x[-1] = 0.0
    return x


def _handed(**wrong: str) -> Any:
    """Return what hands back one gradient in the place of another of the same shape."""

    def returned(self: Kernel, answer: Outputs) -> Outputs:
        for name, other in wrong.items():
            if getattr(answer, name) is None or getattr(answer, name).shape != getattr(answer, other).shape:
                return answer
        gradients: dict[str, Any] = {name: getattr(answer, other) for name, other in wrong.items()}
        return replace(answer, **gradients)

    return returned


def _unmasked(self: Kernel, work: Work) -> Work:
    return replace(work, mask=torch.ones_like(work.mask) & work.mask.any(-1, keepdim=True))


def _one_more(self: Kernel, work: Work) -> Work:
    """Return the work of a backward whose causal mask lets each query see the next key too."""
    shifted = torch.nn.functional.pad(work.mask[..., :-1], (1, 0))
    return replace(work, mask=work.mask | shifted & work.mask.any(-1, keepdim=True))


def _hides(case: Case) -> bool:
    """Return whether a mask hides a key from a query that sees another."""
    return case.causal or case.windowed or case.layout != "dense"


def _hides_next(case: Case) -> bool:
    return case.causal and case.layout == "dense" and 1 < case.seqlen_q <= case.seqlen_k


def _last_key_seen(case: Case) -> bool:
    low, high = visible_bounds(case, case.seqlen_q, case.seqlen_k)
    return blocks_seen(case) and max(low, case.seqlen_k - case.seqlen_q) <= min(high, case.seqlen_k - 1)


def _first_doubled(self: Kernel, work: Work) -> list[slice]:
    blocks = Kernel.blocks(self, work)
    return [*blocks, blocks[0]]


def _dv_without_last_rows(self: Kernel, p: Tensor, dout: Tensor) -> Tensor:
    kept = dout.clone()
    kept[:, :, (dout.shape[2] - 1) // 64 * 64 :] = 0.0
    return Kernel.sum_dv(self, p, kept)


def _top(self: Kernel, lse: Tensor) -> Tensor:
    return lse.roll(1, 2)


def _multi_head(case: Case) -> bool:
    return case.num_heads > 1


BACKWARD_FAULTS = (
    _wrong("dq_not_scaled", "dq lacks the softmax scale", scaled_dq=lambda self, dq: dq),
    _wrong("dk_not_scaled", "dk lacks the softmax scale", scaled_dk=lambda self, dk: dk),
    _wrong("delta_omitted", "dS = P·dP", delta=lambda self, work, out: torch.zeros_like(out[..., :1])),
    _wrong("delta_absolute", "D = rowsum(|dO·O|)",
           delta=lambda self, work, out: (work.dout * out).abs().sum(-1, keepdim=True)),
    _wrong("delta_of_next_head", "D of the next head",
           _multi_head, delta=lambda self, work, out: Kernel.delta(self, work, out).roll(-1, 1)),
    _wrong("delta_of_previous_row", "D of the row before",
           delta=lambda self, work, out: Kernel.delta(self, work, out).roll(1, 2)),
    _wrong("lse_of_previous_row", "backward reads the LSE of the row before", lse_for_backward=_top),
    _wrong("mask_ignored_in_backward", "backward without the mask", _hides, backward_work=_unmasked),
    _wrong("mask_off_by_one_in_backward", "backward sees the next key", _hides_next, backward_work=_one_more),
    _wrong("dq_lost_block", "dq lacks the second key block",
           blocks_seen, add_dq=lambda self, dq, part, block: dq + part * (block.start != Kernel.block)),
    _wrong("dq_doubled_block", "dq counts the first key block twice", blocks_seen, backward_blocks=_first_doubled),
    _wrong("dkv_lost_last_block", "dk and dv lack the last key block", _last_key_seen,
           backward_blocks=lambda self, work: Kernel.blocks(self, work)[:-1]),
    _wrong("dv_without_last_rows", "dv lacks the last block of queries", blocks_seen, sum_dv=_dv_without_last_rows),
    _wrong("dk_and_dv_swapped", "dk returned as dv and the reverse",
           lambda case: case.head_dim == case.v_head_dim, returned=_handed(dk="dv", dv="dk")),
    _wrong("dq_for_dk", "dq returned as dk",
           lambda case: case.seqlen_q == case.seqlen_k and case.num_heads == case.num_kv_heads,
           returned=_handed(dk="dq")),
    _wrong("one_nan_in_dv", "one value of dv is NaN", returned=changed("dv", _one_nan)),
    _wrong("dk_rolled", "dk of the next key", returned=changed("dk", lambda x: x.roll(-1, 1))),
    _wrong("dq_last_row_lost", "dq of the last query is zero",
           lambda case: case.layout != "right_padded" and case.seqlens_k[-1] > 1
           and case.seqlens_q[-1] > 0, returned=changed("dq", _last_row_lost)),
    _wrong("dk_last_batch_row_lost", "dk of the last batch row is zero",
           lambda case: case.batch > 1 and case.seqlens_k[-1] > 1,
           returned=changed("dk", _one_batch_row_lost)),
    _wrong("dv_of_last_head_rolled", "dv of the last kv head moved by one key",
           returned=changed("dv", lambda x: torch.cat((x[:, :, :-1], x[:, :, -1:].roll(1, 1)), 2))),
    _wrong("gradients_doubled", "dk counted twice", returned=changed("dk", lambda x: 2 * x)),
    _wrong("dq_sign", "dq of head 0 with the wrong sign",
           returned=changed("dq", lambda x: torch.cat((-x[:, :, :1], x[:, :, 1:]), 2))),
)  # fmt: skip
