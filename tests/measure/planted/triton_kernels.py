"""A correct attention kernel in Triton and faults compiled into it, for GPUs (or Triton's interpreter).

Triton is imported by the first run only. The kernels take dense cases, causal or full, grouped heads, and equal
head_dims of 32, 64 or 128.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case
from tests.measure.planted.fault import Fault, everywhere, grouped

BLOCK = 64


def takes(case: Case) -> bool:
    """Return whether the kernels compute this case."""
    plain = case.layout == "dense" and not (case.windowed or case.softcap or case.sinks or case.alibi or case.dropout)
    return plain and case.head_dim == case.v_head_dim and case.head_dim in (32, 64, 128)


def run_triton(inputs: Inputs, deterministic: bool, fault: str = "") -> Outputs:
    """Run the case with `fault` compiled in; the sums have one order, deterministic or not."""
    from tests.measure.planted import triton_source as source

    case = inputs.case
    if not takes(case):
        raise Refused("the Triton kernel takes dense cases of equal head_dims 32, 64 and 128 without window or bias")
    q, k, v, dout = (_unit_stride(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(case.batch, case.num_heads, case.seqlen_q, dtype=torch.float32, device=q.device)
    scale = case.softmax_scale * (1.0 if fault == "scale_without_log2e" else 1.0 / math.log(2.0))
    strides: tuple[int, ...] = (*_strides(q), *_strides(k), *_strides(v))
    sizes = (case.seqlen_q, case.seqlen_k, _offset(case))
    options: dict[str, Any] = {
        "num_heads": case.num_heads,
        "group": case.num_heads // case.num_kv_heads,
        "head_dim": case.head_dim,
        "block_q": BLOCK,
        "block_k": BLOCK,
        "causal": case.causal,
        "fault": fault,
        "num_warps": 4,
        "num_stages": 2,
    }
    lines = case.batch * case.num_heads
    q_grid, k_grid = ((math.ceil(size / BLOCK), lines) for size in (case.seqlen_q, case.seqlen_k))
    source.forward[q_grid](q, k, v, out, lse, scale, *strides, *_strides(out), *sizes, **options)
    if not case.backward:
        return Outputs(out, lse)
    delta = (out.float() * dout.float()).sum(-1).transpose(1, 2).contiguous()
    dq = torch.empty_like(out)
    dk, dv = (torch.empty(case.batch, case.seqlen_k, *q.shape[2:], dtype=q.dtype, device=q.device) for _ in range(2))
    operands = (q, k, v, dout, lse, delta)
    scales = (scale, case.softmax_scale)
    strides = (*strides, *_strides(dout))
    source.gradients_of_keys[k_grid](*operands, dk, dv, *scales, *strides, *_strides(dk), *sizes, **options)
    source.gradient_of_queries[q_grid](*operands, dq, *scales, *strides, *_strides(dq), *sizes, **options)
    return Outputs(out, lse, dq, _group_sum(case, dk), _group_sum(case, dv))


def _offset(case: Case) -> int:
    return case.seqlen_k - case.seqlen_q if case.alignment == "bottom_right" else 0


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _group_sum(case: Case, x: Tensor) -> Tensor:
    if case.num_heads == case.num_kv_heads:
        return x
    return x.float().reshape(*x.shape[:2], case.num_kv_heads, -1, x.shape[3]).sum(3).to(x.dtype)


def _blocks(case: Case) -> bool:
    return takes(case) and min(case.seqlen_q, case.seqlen_k) > 2 * BLOCK


def _backward(case: Case) -> bool:
    return takes(case) and everywhere(case) and case.backward


def _tail(case: Case) -> bool:
    return takes(case) and not case.causal and case.seqlen_k % BLOCK > 0


def _next(case: Case) -> bool:
    return takes(case) and everywhere(case) and case.causal


def _tiles(case: Case) -> bool:
    return takes(case) and grouped(case) and case.num_kv_heads > 1 and case.strides != "expanded"


def _any(case: Case) -> bool:
    return takes(case) and everywhere(case)


def _lost(case: Case) -> bool:
    return _backward(case) and case.seqlen_q > 1 and (not case.causal or _offset(case) > -BLOCK)


def _fault(name: str, family: str, what: str, applies: Callable[[Case], bool]) -> Fault:
    """Return a fault of the kernel, planted only if it applies."""

    def run(inputs: Inputs, deterministic: bool) -> Outputs:
        return run_triton(inputs, deterministic, name if applies(inputs.case) else "")

    return Fault(f"triton_{name}", family, what, run, applies, right=run_triton)


KERNEL_FAULTS: tuple[Fault, ...] = (
    _fault("causal_future", "mask", "causal mask off by one: sees the next key", _next),
    _fault("last_block_dropped", "mask", "last key block not visited in the forward", _blocks),
    _fault("tail_of_zeros", "mask", "keys beyond the end read as zeros", _tail),
    _fault("scale_without_log2e", "scale", "exp2 of scores in natural units", _any),
    _fault("kv_heads_tiled", "heads", "repeat for repeat_interleave", _tiles),
    _fault("out_not_rescaled", "softmax", "output not rescaled when the maximum grows", _blocks),
    _fault("stale_values", "softmax", "the values of a key block are those of the one before", _blocks),
    _fault("lse_base_2", "softmax", "LSE in base 2", _any),
    _fault("dq_not_scaled", "backward", "dq lacks the softmax scale", _backward),
    _fault("delta_missing", "backward", "dS = P·dP", _backward),
    _fault("dv_lost_block", "backward", "dv lacks the first block of queries", _lost),
)
