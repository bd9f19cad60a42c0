"""Planted faults in the scores, heads and softmax: scale, soft cap, sinks, ALiBi, grouped heads, LSE, stale tiles."""

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
from tests.measure.planted.fault import Fault, backward, everywhere, grouped, planted


def _scaled(name: str, what: str, factor: Callable[[Case], float]) -> Fault:
    def applies(case: Case) -> bool:
        return everywhere(case) and factor(case) != 1.0

    return planted(name, "scale", what, applies, scale=lambda self: Kernel.scale(self) * factor(self.case))


def _padded_head_dim(case: Case) -> float:
    return math.sqrt(case.head_dim / (1 << (case.head_dim - 1).bit_length()))


SCALE = (
    _scaled("scale_plus_1_percent", "softmax scale 1 % too large", lambda case: 1.01),
    _scaled("scale_minus_2_percent", "softmax scale 2 % too small", lambda case: 0.98),
    _scaled("scale_of_v_head_dim", "sqrt of v's head_dim", lambda case: math.sqrt(case.head_dim / case.v_head_dim)),
    _scaled("scale_of_padded_head_dim", "sqrt of head_dim rounded up to a power of two", _padded_head_dim),
    _scaled("scale_without_sqrt", "1/head_dim for 1/sqrt(head_dim)", lambda case: case.head_dim**-0.5),
    _scaled("scale_ignored", "scores not scaled", lambda case: case.head_dim**0.5),
    _scaled("scale_without_log2e", "exp2 of scores in natural units", lambda case: math.log(2.0)),
    _scaled("scale_twice_log2e", "log2(e) applied twice", lambda case: 1.0 / math.log(2.0)),
)


def _softcapped(case: Case) -> bool:
    return everywhere(case) and case.softcap > 0.0


def _cap_before_scale(self: Kernel, work: Work, block: slice) -> Tensor:
    raw = torch.matmul(work.q, work.k[:, :, block].transpose(2, 3))
    return raw if self.case.softcap else raw * self.scale()


def _scaled_after_cap(self: Kernel, raw: Tensor) -> tuple[Tensor, Tensor | None]:
    s, slope = Kernel.capped(self, raw)
    return (s, slope) if slope is None else (s * self.scale(), slope)


SOFTCAP = (
    planted("softcap_ignored", "softcap", "no soft cap", _softcapped, capped=lambda self, raw: (raw, None)),
    planted(
        "softcap_before_scale",
        "softcap",
        "soft cap on scores that are not scaled yet",
        _softcapped,
        products=_cap_before_scale,
        capped=_scaled_after_cap,
    ),
    planted(
        "softcap_gradient_missing",
        "softcap",
        "backward without the cap's derivative",
        lambda case: _softcapped(case) and case.backward,
        uncapped=lambda self, ds, slope: ds,
    ),
)


def _sinking(case: Case) -> bool:
    return everywhere(case) and case.sinks


def _no_sinks(self: Kernel, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, lse


def _first_sink(self: Kernel) -> Tensor | None:
    sinks = self.inputs.sinks
    return None if sinks is None else sinks[:1].expand_as(sinks)


def _doubled(self: Kernel) -> Tensor | None:
    sinks = self.inputs.sinks
    return None if sinks is None else sinks + math.log(2.0)


def _sinkless_backward(self: Kernel, lse: Tensor) -> Tensor:
    sinks = self.inputs.sinks
    return lse if sinks is None else lse + torch.log1p(-torch.exp(sinks[None, :, None, None] - lse))


def _next_sink(self: Kernel) -> Tensor | None:
    return None if self.inputs.sinks is None else self.inputs.sinks.roll(-1)


def _scaled_sinks(self: Kernel) -> Tensor | None:
    return None if self.inputs.sinks is None else self.inputs.sinks * self.scale()


def _sinks_in_out_alone(self: Kernel, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return Kernel.with_sinks(self, out, lse)[0], lse


def _sinks_in_lse_alone(self: Kernel, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, Kernel.with_sinks(self, out, lse)[1]


def _sinking_backward(case: Case) -> bool:
    return _sinking(case) and case.backward


def _present(self: Kernel) -> Tensor:
    assert self.inputs.sinks is not None
    return self.inputs.sinks


def _right_gradient(self: Kernel, lse: Tensor, delta: Tensor) -> Tensor:
    gradient = Kernel.sink_gradient(self, lse, delta)
    assert gradient is not None
    return gradient


SINKS = (
    planted("sinks_ignored", "sinks", "no sinks in the softmax's sum", _sinking, with_sinks=_no_sinks),
    planted("sinks_doubled", "sinks", "sinks counted twice", _sinking, sinks=_doubled),
    planted(
        "sinks_of_head_0",
        "sinks",
        "head 0's sink for all",
        lambda c: _sinking(c) and c.num_heads > 1,
        sinks=_first_sink,
    ),
    planted(
        "sinks_ignored_in_backward",
        "sinks",
        "backward with the LSE of the keys alone",
        lambda case: _sinking(case) and case.backward,
        lse_for_backward=_sinkless_backward,
    ),
    planted("sinks_of_next_head", "sinks", "the next head's sink", _sinking, sinks=_next_sink),
    planted("sinks_scaled", "sinks", "the softmax scale applied to the sinks too", _sinking, sinks=_scaled_sinks),
    planted("sinks_in_out_alone", "sinks", "sinks in out and not in LSE", _sinking, with_sinks=_sinks_in_out_alone),
    planted("sinks_in_lse_alone", "sinks", "sinks in LSE and not in out", _sinking, with_sinks=_sinks_in_lse_alone),
    planted("sinks_gradient_zero", "sinks", "the sinks' gradient is zero", _sinking_backward,
            sink_gradient=lambda self, lse, delta: torch.zeros_like(_present(self))),
    planted("sinks_gradient_sign", "sinks", "the sinks' gradient with the wrong sign", _sinking_backward,
            sink_gradient=lambda self, lse, delta: -_right_gradient(self, lse, delta)),
    planted("sinks_gradient_of_next_head", "sinks", "the next head's gradient of the sinks", _sinking_backward,
            sink_gradient=lambda self, lse, delta: _right_gradient(self, lse, delta).roll(1)),
)  # fmt: skip


def _sloped(change: Callable[[Tensor], Tensor]) -> Any:
    def slopes(self: Kernel) -> Tensor | None:
        right = self.inputs.slopes
        return None if right is None else change(right)

    return slopes


def _biased(case: Case) -> bool:
    return everywhere(case) and case.alibi


def _biased_heads(case: Case) -> bool:
    return _biased(case) and case.num_heads > 1


ALIBI = (
    planted("alibi_ignored", "alibi", "no bias", _biased, slopes=lambda self: None),
    planted("alibi_slope_halved", "alibi", "2^(-4 h / heads)", _biased, slopes=_sloped(torch.sqrt)),
    planted("alibi_slopes_rolled", "alibi", "the next head's slope",
            _biased_heads, slopes=_sloped(lambda x: x.roll(-1))),
    planted("alibi_last_head_flat", "alibi", "no slope in the last head", _biased,
            slopes=_sloped(lambda x: torch.cat((x[:-1], 0.0 * x[-1:])))),
)  # fmt: skip


def _heads_differ(case: Case) -> bool:
    return everywhere(case) and case.num_heads > 1


def _kv_heads_differ(case: Case) -> bool:
    return everywhere(case) and case.num_kv_heads > 1 and case.strides != "expanded"


def _tiles(case: Case) -> bool:
    return grouped(case) and _kv_heads_differ(case)


def _swapped(x: Tensor, dim: int) -> Tensor:
    order = torch.arange(x.shape[dim], device=x.device)
    order[:2] = order[:2].flip(0)
    return x.index_select(dim, order)


def _q_swapped(self: Kernel) -> Work:
    work = Kernel.load(self)
    return replace(work, q=_swapped(work.q, 1))


def _tiled(self: Kernel) -> Tensor:
    return torch.arange(self.case.num_heads, device=self.inputs.device) % self.case.num_kv_heads


def _last_head_reads_first(self: Kernel) -> Tensor:
    heads = Kernel.kv_heads(self)
    heads[-1] = 0
    return heads


def _every_second_alone(self: Kernel, x: Tensor) -> Tensor:
    return x[:, self.group() - 1 :: self.group()]


def _dk_without_head_0(self: Kernel, ds: Tensor, q: Tensor) -> Tensor:
    dk = Kernel.sum_dk(self, ds, q)
    dk[:, 0] = 0.0
    return dk


HEADS = (
    planted("kv_heads_rolled", "heads", "the next kv head", _kv_heads_differ,
            kv_heads=lambda self: (Kernel.kv_heads(self) + 1) % self.case.num_kv_heads),
    planted("kv_heads_tiled", "heads", "repeat for repeat_interleave", _tiles,
            kv_heads=_tiled),
    planted("kv_head_0_for_all", "heads", "kv head 0 for every query head", _kv_heads_differ,
            kv_heads=lambda self: 0 * Kernel.kv_heads(self)),
    planted("last_head_reads_kv_head_0", "heads", "kv head 0 for the last query head", _kv_heads_differ,
            kv_heads=_last_head_reads_first),
    planted("q_heads_swapped", "heads", "query heads 0 and 1 swapped", _heads_differ, load=_q_swapped),
    planted("out_heads_swapped", "heads", "heads 0 and 1 of out swapped", _heads_differ,
            returned=lambda self, answer: replace(answer, out=_swapped(answer.out, 2))),
    planted("dkv_of_last_head_only", "heads", "gradients of one head of a group", lambda c: grouped(c) and c.backward,
            group_sum=_every_second_alone),
    planted("dkv_group_mean", "heads", "mean for sum over a group", lambda c: grouped(c) and c.backward,
            group_sum=lambda self, x: Kernel.group_sum(self, x) / self.group()),
    planted("dk_without_head_0", "heads", "dk lacks query head 0", backward, sum_dk=_dk_without_head_0),
)  # fmt: skip


def blocks_seen(case: Case) -> bool:
    """Return whether a dense row sees keys of two blocks."""
    return case.layout == "dense" and min(case.seqlen_q, case.seqlen_k) > 2 * Kernel.block


def _previous(block: slice) -> slice:
    """Return the first tile for the second block, as a stale buffer of it."""
    return slice(0, block.stop - block.start) if block.start == Kernel.block else block


def _lse_changed(change: Callable[[Tensor], Tensor]) -> Any:
    def returned(self: Kernel, answer: Outputs) -> Outputs:
        return answer if answer.lse is None else replace(answer, lse=change(answer.lse))

    return returned


def _block_ends_off(lse: Tensor) -> Tensor:
    lse = lse.clone()
    lse[..., Kernel.block - 1 :: Kernel.block] += 0.01
    return lse


def _block_ends(case: Case) -> bool:
    return everywhere(case) and case.layout == "dense" and min(case.seqlen_q, case.seqlen_k) >= Kernel.block


SOFTMAX = (
    planted("lse_base_2", "softmax", "LSE in base 2", everywhere, returned=_lse_changed(lambda x: x / math.log(2.0))),
    planted("lse_plus_1_thousandth", "softmax", "LSE too large by 0.001",
            everywhere, returned=_lse_changed(lambda x: x + 1e-3)),
    planted("lse_off_at_block_ends", "softmax", "LSE too large by 0.01 in every 64th row",
            _block_ends, returned=_lse_changed(_block_ends_off)),
    planted("lse_without_maximum", "softmax", "LSE lacks the maximum",
            everywhere, log_sum=lambda self, top, total: torch.log(total),
            lse_for_backward=lambda self, lse: Kernel(self.inputs).attend(self.load())[1]),
    planted("out_not_rescaled", "softmax", "output not rescaled when the maximum grows", blocks_seen,
            add_out=lambda self, out, shrink, product: out * (shrink > 0.0) + product),
    planted("sum_not_rescaled", "softmax", "sum not rescaled when the maximum grows", blocks_seen,
            add_sum=lambda self, total, shrink, p: total * (shrink > 0.0) + p.sum(-1, keepdim=True)),
    planted("stale_block", "softmax", "the second key block is the first again", blocks_seen,
            key_tile=lambda self, work, block: work.k[:, :, _previous(block)],
            value_tile=lambda self, work, block: work.v[:, :, _previous(block)]),
    planted("stale_values", "softmax", "the values of the second key block are those of the first", blocks_seen,
            value_tile=lambda self, work, block: work.v[:, :, _previous(block)]),
    planted("block_visited_twice", "softmax", "the first key block counts twice", blocks_seen,
            blocks=lambda self, work: [slice(0, Kernel.block), *Kernel.blocks(self, work)]),
)  # fmt: skip

SCORE_FAULTS = (*SCALE, *SOFTCAP, *SINKS, *ALIBI, *HEADS, *SOFTMAX)
