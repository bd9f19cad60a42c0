"""Planted losses of precision. What a dtype's own rounding hides is said; there no verdict is expected.

"Unflagged in bf16" is the numerical study's finding: the error grows by less than a legitimate reduce-scatter adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.core.cases import Case
from tests.measure.planted.emulated import Kernel, Work
from tests.measure.planted.fault import backward, everywhere, precise
from tests.measure.planted.ring import Part, Ring
from tests.measure.planted.ring_faults import ring_case
from tests.measure.planted.score_faults import blocks_seen


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def half(x: Tensor) -> Tensor:
    return x.half().float()


def fp8(x: Tensor) -> Tensor:
    """Return x rounded to e4m3's 3 mantissa bits; a range of 448 is enough for P, and for dS with a scale."""
    return x.to(torch.float8_e4m3fn).float()


def scaled_fp8(x: Tensor) -> Tensor:
    size = x.abs().amax().clamp_min(1e-30) / 256.0
    return fp8(x / size) * size


def tf32(x: Tensor) -> Tensor:
    """Return x with the 10 mantissa bits that a tensor core takes of float32."""
    kept = (x.view(torch.int32) + 0x1000) & ~0x1FFF
    return kept.view(torch.float32)


def _tf32_load(self: Kernel) -> Work:
    work = Kernel.load(self)
    q, k, v, dout = (tf32(x.contiguous()) for x in (work.q, work.k, work.v, work.dout))
    return replace(work, q=q, k=k, v=v, dout=dout)


def _float32(case: Case) -> bool:
    return everywhere(case) and case.dtype == "float32"


def _finer_than_bf16(case: Case) -> bool:
    return everywhere(case) and case.dtype != "bfloat16"


def _gradient_finer_than_bf16(case: Case) -> bool:
    return _finer_than_bf16(case) and case.backward


def _finer_ring(case: Case) -> bool:
    return ring_case(case) and case.backward


def _halved_scores(self: Kernel, work: Work, block: slice) -> Tensor:
    return half(Kernel.products(self, work, block))


def _rounded_scores(self: Kernel, work: Work, block: slice) -> Tensor:
    return self.rounded(Kernel.products(self, work, block))


def _dv_in_bf16(self: Kernel, p: Tensor, dout: Tensor) -> Tensor:
    total = torch.zeros(*p.shape[:2], p.shape[3], dout.shape[3], device=p.device)
    for start in range(0, p.shape[2], 64):
        part = torch.matmul(p[:, :, start : start + 64].transpose(2, 3), dout[:, :, start : start + 64])
        total = bf16(total + part)
    return total


def _polynomial(self: Kernel, x: Tensor) -> Tensor:
    """Return exp as 2^n times a parabola: 0.3 % off at worst, as a careless exp2 emulation is."""
    y = (x / math.log(2.0)).clamp_min(-126.0)
    exponent = torch.floor(y)
    part = y - exponent
    return torch.where(x == -math.inf, 0.0, torch.exp2(exponent) * (1.0 + part * (0.6565 + 0.3435 * part)))


def _merge_bf16(self: Ring, held: Part, part: Part, step: int) -> Part:
    out, lse = Ring.merge(self, held, part, step)
    return bf16(out), lse


def _lse_rounded(rounding: Callable[[Tensor], Tensor]) -> Any:
    return lambda self, top, total: rounding(Kernel.log_sum(self, top, total))


def _half_products(self: Kernel, work: Work, block: slice) -> Tensor:
    return half(torch.matmul(work.q, work.k[:, :, block].transpose(2, 3)) * 256.0) / 256.0 * self.scale()


def _finest_bf16(case: Case) -> bool:
    return backward(case) and case.dtype == "bfloat16"


def _long_bf16(case: Case) -> bool:
    return _finest_bf16(case) and case.seqlen_k > 1024


def _wide_bf16(case: Case) -> bool:
    return _finest_bf16(case) and case.head_dim > 128


def _sum_in_io_dtype(self: Kernel, x: Tensor, y: Tensor) -> Tensor:
    """Return xᵀ y, rounded to the io dtype after each 64 queries."""
    total = torch.zeros(*x.shape[:2], x.shape[3], y.shape[3], device=x.device)
    for start in range(0, x.shape[2], 64):
        part = torch.matmul(x[:, :, start : start + 64].transpose(2, 3), y[:, :, start : start + 64])
        total = self.rounded(total + part)
    return total


def _ds_of_rounded_dp(self: Kernel, work: Work, block: slice, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    s, slope = self.scores(work, block)
    p = self.exp(s - lse.masked_fill(lse == -math.inf, 0.0))
    dp = self.rounded(torch.matmul(work.dout, self.value_tile(work, block).transpose(2, 3)))
    ds = p * (dp - delta)
    return p, self.rounded_ds(ds if slope is None else self.uncapped(ds, slope))


def _overflows(case: Case) -> bool:
    return everywhere(case) and case.values == "large"


PRECISION_FAULTS = (
    precise("p_fp8", "P rounded to e4m3", everywhere, rounded_p=lambda self, p: fp8(p)),
    precise("ds_fp8", "dS rounded to e4m3, scaled per block", backward, rounded_ds=lambda self, ds: scaled_fp8(ds)),
    precise("p_bf16", "P rounded to bf16 (shows in fp16 and fp32)",
            _finer_than_bf16, rounded_p=lambda self, p: bf16(p)),
    precise("out_accumulated_in_bf16", "output accumulator bf16 (unflagged in bf16 with few blocks)", blocks_seen,
            add_out=lambda self, out, shrink, product: bf16(out * shrink + product)),
    precise("sum_accumulated_in_bf16", "softmax sum bf16", blocks_seen,
            add_sum=lambda self, total, shrink, p: bf16(total * shrink + p.sum(-1, keepdim=True))),
    precise("dq_accumulated_in_bf16", "dq accumulator bf16 (unflagged in bf16)",
            lambda c: blocks_seen(c) and c.backward,
            add_dq=lambda self, dq, part, block: bf16(dq + part)),
    precise("dv_accumulated_in_bf16", "dv accumulator bf16 (unflagged in bf16 with few blocks)",
            lambda c: blocks_seen(c) and c.backward, sum_dv=_dv_in_bf16),
    precise("dq_through_bf16", "dq handed back through bf16 (ring_flash_attn 0.1.8; shows in fp16 and fp32)",
            _gradient_finer_than_bf16, scaled_dq=lambda self, dq: bf16(Kernel.scaled_dq(self, dq))),
    precise("lse_bf16", "LSE kept in bf16", everywhere, log_sum=_lse_rounded(bf16)),
    precise("lse_float16", "LSE kept in float16", everywhere, log_sum=_lse_rounded(half)),
    precise("exp_polynomial", "exp off by 0.5 %", everywhere, exp=_polynomial),
    precise("scores_in_io_dtype", "scores rounded to the io dtype (nothing in fp32)",
            lambda c: everywhere(c) and c.dtype != "float32", products=_rounded_scores),
    precise("scores_in_float16", "scores rounded to float16 (shows in LSE)", everywhere, products=_halved_scores),
    precise("scale_bf16", "softmax scale rounded to bf16 (nothing if it is a power of two)",
            lambda c: everywhere(c) and bf16(torch.tensor(c.softmax_scale)).item() != c.softmax_scale,
            scale=lambda self: float(torch.tensor(Kernel.scale(self)).bfloat16())),
    precise("fp16_overflow", "scores summed in float16 overflow", _overflows, products=_half_products),
    precise("no_maximum_subtracted", "exp of the scores themselves: overflows if they are large",
            lambda c: everywhere(c) and c.values in ("large", "ramp"),
            subtracted=lambda self, top: torch.zeros_like(top)),
    precise("tf32", "float32 inputs through TF32 tensor cores", _float32, load=_tf32_load),
    precise("out_accumulated_in_io_dtype", "output accumulator in the io dtype, of head_dims over 128", _wide_bf16,
            add_out=lambda self, out, shrink, product: self.rounded(out * shrink + product)),
    precise("dq_accumulated_in_io_dtype", "dq accumulator in the io dtype, beyond 1,024 keys", _long_bf16,
            add_dq=lambda self, dq, part, block: self.rounded(dq + part)),
    precise("dk_accumulated_in_io_dtype", "dk accumulator in the io dtype", _finest_bf16, sum_dk=_sum_in_io_dtype),
    precise("dv_accumulated_in_io_dtype", "dv accumulator in the io dtype, beyond 1,024 keys", _long_bf16,
            sum_dv=_sum_in_io_dtype),
    precise("delta_in_io_dtype", "D rounded to the io dtype", _finest_bf16,
            delta=lambda self, work, out: self.rounded(Kernel.delta(self, work, out))),
    precise("dp_in_io_dtype", "dP rounded to the io dtype, of head_dims over 128", _wide_bf16,
            p_and_ds=_ds_of_rounded_dp),
    precise("shrink_in_io_dtype", "the factor that corrects earlier blocks is rounded", _finest_bf16,
            add_out=lambda self, out, shrink, product: out * self.rounded(shrink) + product),
    precise("ring_merge_bf16", "merged output kept in bf16 (unflagged in bf16)", ring_case, Ring, merge=_merge_bf16),
    precise("ring_merge_lse_bf16", "merged LSE kept in bf16", ring_case, Ring,
            merged_lse=lambda self, lse, new: bf16(torch.logaddexp(lse, new))),
    precise("ring_dq_accumulated_in_bf16", "dq summed across ranks in bf16 (unflagged in bf16)", _finer_ring, Ring,
            travel_dq=lambda self, dq: bf16(dq)),
    precise("ring_dkv_accumulated_in_bf16", "dk and dv travel in bf16 (unflagged in bf16)", _finer_ring, Ring,
            travel_dkv=lambda self, x: bf16(x)),
)  # fmt: skip
