"""Calls ring-flash-attn's functions on a rank's shard: dense, packed, and llama3's; with k and v apart or as one.

All functions return (out, lse, None) with `return_attn_probs=True`. The packed ones of flash-attn before 2.6 have an
LSE of (documents, heads, max_seqlen), later ones (heads, tokens) (zhuzilin/ring-flash-attention,
ring_flash_attn/*_varlen.py, `old_lse`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.calls import ring_package
from attncheck.attention.calls.common import leaves
from attncheck.attention.inputs import Inputs


def dense(stem: str, inputs: Inputs, deterministic: bool) -> Outputs:
    """Run `<stem>[_kvpacked|_qkvpacked]_func` on `(batch, tokens, heads, head_dim)`."""
    out, lse, gradients = _called(stem, inputs, (), {}, deterministic, lead=2)
    return _outputs(out, lse, gradients)


def packed(stem: str, inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a packed function, given the cu_seqlens of the shard: each document's length over the ranks."""
    case = inputs.case
    lengths = [length // case.context_parallel_size for length in case.seqlens_q]
    cu_seqlens = _cumulative(lengths, inputs)
    place = (cu_seqlens, max(lengths))
    out, lse, gradients = _called(stem, _row(inputs), place, {}, deterministic, lead=1)
    return _unsqueezed(out, _flat(lse, cu_seqlens), gradients)


def llama3(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run llama3's function: contiguous shards of the packed row, kv heads gathered `heads_k_stride` at a time."""
    case = inputs.case
    stride = case.heads_k_stride or case.num_kv_heads
    prepare = ring_package.load().llama3_flash_attn_prepare_cu_seqlens
    whole = _cumulative(case.seqlens_q, inputs)
    *lengths, kept = prepare(whole, case.causal, inputs.rank, case.context_parallel_size)
    words = {"heads_k_stride": stride, "local_k_slice": kept}
    out, lse, gradients = _called("llama3_flash_attn_varlen", _row(inputs), lengths, words, deterministic, lead=1)
    return _unsqueezed(out, _flat(lse, lengths[0]), gradients)


def _cumulative(lengths: Any, inputs: Inputs) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=inputs.q.device)


def _row(inputs: Inputs) -> Inputs:
    return replace(inputs, q=inputs.q[0], k=inputs.k[0], v=inputs.v[0], dout=inputs.dout[0])


def _called(
    stem: str, inputs: Inputs, place: Any, words: dict[str, Any], deterministic: bool, lead: int
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return out, lse and (dq, dk, dv) or (); `lead` is where k and v are stacked, after batch and tokens."""
    case, package = inputs.case, ring_package.load()
    q, k, v = leaves(inputs)
    taken: tuple[Tensor, ...] = (q, k, v)
    if case.operands == "kvpacked":
        taken = (q, torch.stack((inputs.k, inputs.v), lead).requires_grad_(case.backward))
    elif case.operands == "qkvpacked":
        taken = (torch.stack((inputs.q, inputs.k, inputs.v), lead).requires_grad_(case.backward),)
    suffix = {"split": "_func", "kvpacked": "_kvpacked_func", "qkvpacked": "_qkvpacked_func"}[case.operands]
    function = getattr(package, stem + suffix)
    out, lse, _ = function(
        *taken,
        *place,
        **words,
        causal=case.causal,
        window_size=case.window_size,
        deterministic=deterministic,
        return_attn_probs=True,
        group=inputs.group,
    )
    if not case.backward:
        return out.detach(), lse.detach(), ()
    return out.detach(), lse.detach(), _apart(torch.autograd.grad(out, taken, inputs.dout), lead)


def _apart(gradients: tuple[Tensor, ...], lead: int) -> tuple[Tensor, ...]:
    if len(gradients) == 3:
        return gradients
    *first, stacked = gradients
    return (*first, *stacked.unbind(lead))


def _flat(lse: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return LSE as (heads, tokens), whichever layout flash-attn's version has."""
    if lse.dim() == 2:
        return lse
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    return torch.cat([lse[index, :, :length] for index, length in enumerate(lengths)], dim=1)


def _outputs(out: Tensor, lse: Tensor, gradients: tuple[Tensor, ...]) -> Outputs:
    dq, dk, dv = gradients or (None, None, None)
    return Outputs(out, lse, dq, dk, dv)


def _unsqueezed(out: Tensor, lse: Tensor, gradients: tuple[Tensor, ...]) -> Outputs:
    return _outputs(out[None], lse[None], tuple(gradient[None] for gradient in gradients))
