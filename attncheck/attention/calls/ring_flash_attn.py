"""Calls ring-flash-attn's functions on a rank's shard: dense, packed and llama3's, with k and v separate or stacked.

All functions return (out, lse, None) with `return_attn_probs=True`. The LSE of packed ones is (documents, heads,
max_seqlen) before flash-attn 2.6, and (heads, tokens) since (zhuzilin/ring-flash-attention,
ring_flash_attn/*_varlen.py, `old_lse`).
"""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.calls import ring_package
from attncheck.attention.calls.common import compute_gradients, make_leaves
from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import hand_over


def run_dense(stem: str, inputs: Inputs, deterministic: bool) -> Outputs:
    """Run `<stem>[_kvpacked|_qkvpacked]_func` on `(batch, tokens, heads, head_dim)`."""
    out, lse, gradients = _call_function(stem, inputs, (), {}, deterministic, stack_dim=2)
    return _make_outputs(out, lse, gradients)


def run_packed(stem: str, inputs: Inputs, deterministic: bool) -> Outputs:
    """Run `<stem>[_kvpacked|_qkvpacked]_func` with cu_seqlens of the shard: each document's length across the ranks."""
    case = inputs.case
    lengths = [length // case.context_parallel_size for length in case.seqlens_q]
    cu_seqlens = _build_cu_seqlens(lengths, inputs)
    cu_seqlens_arguments = (cu_seqlens, max(lengths))
    out, lse, gradients = _call_function(
        stem, _drop_batch(inputs), cu_seqlens_arguments, {}, deterministic, stack_dim=1
    )
    return _make_row_outputs(out, _flatten_lse(lse, cu_seqlens), gradients)


def run_llama3(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run llama3's function: contiguous shards of the packed row, kv heads gathered `heads_k_stride` at a time."""
    case = inputs.case
    stride = case.heads_k_stride or case.num_kv_heads
    prepare = ring_package.load().llama3_flash_attn_prepare_cu_seqlens
    cu_seqlens = _build_cu_seqlens(case.seqlens_q, inputs)
    *cu_seqlens_arguments, local_k_slice = prepare(cu_seqlens, case.causal, inputs.rank, case.context_parallel_size)
    kwargs = {"heads_k_stride": stride, "local_k_slice": local_k_slice}
    out, lse, gradients = _call_function(
        "llama3_flash_attn_varlen", _drop_batch(inputs), cu_seqlens_arguments, kwargs, deterministic, stack_dim=1
    )
    return _make_row_outputs(out, _flatten_lse(lse, cu_seqlens_arguments[0]), gradients)


def _build_cu_seqlens(lengths: Any, inputs: Inputs) -> Tensor:
    return hand_over("cu_seqlens", torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=inputs.q.device))


def _drop_batch(inputs: Inputs) -> Inputs:
    """Return the inputs of a packed row as (tokens, heads, head_dim)."""
    return replace(inputs, q=inputs.q[0], k=inputs.k[0], v=inputs.v[0], dout=inputs.dout[0])


def _call_function(
    stem: str, inputs: Inputs, cu_seqlens_arguments: Any, kwargs: dict[str, Any], deterministic: bool, stack_dim: int
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return out, lse and (dq, dk, dv) or (); k and v are stacked along `stack_dim`, after batch and tokens."""
    case, package = inputs.case, ring_package.load()
    q, k, v = make_leaves(inputs)
    operands: tuple[Tensor, ...] = (q, k, v)
    if case.operands == "kvpacked":
        operands = (q, torch.stack((inputs.k, inputs.v), stack_dim).requires_grad_(case.backward))
    elif case.operands == "qkvpacked":
        operands = (torch.stack((inputs.q, inputs.k, inputs.v), stack_dim).requires_grad_(case.backward),)
    suffix = {"split": "_func", "kvpacked": "_kvpacked_func", "qkvpacked": "_qkvpacked_func"}[case.operands]
    function = getattr(package, stem + suffix)
    out, lse, _ = function(
        *operands,
        *cu_seqlens_arguments,
        **kwargs,
        causal=case.causal,
        window_size=case.window_size,
        deterministic=deterministic,
        return_attn_probs=True,
        group=inputs.group,
    )
    if not case.backward:
        return out.detach(), lse.detach(), ()
    return out.detach(), lse.detach(), _split_gradients(compute_gradients(out, operands, inputs.dout), stack_dim)


def _split_gradients(gradients: tuple[Tensor, ...], stack_dim: int) -> tuple[Tensor, ...]:
    """Return (dq, dk, dv) from the gradients of operands that may be stacked."""
    if len(gradients) == 3:
        return gradients
    *separate, stacked = gradients
    return (*separate, *stacked.unbind(stack_dim))


def _flatten_lse(lse: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return LSE as (heads, tokens), from either layout of flash-attn's versions."""
    if lse.dim() == 2:
        return lse
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    return torch.cat([lse[index, :, :length] for index, length in enumerate(lengths)], dim=1)


def _make_outputs(out: Tensor, lse: Tensor, gradients: tuple[Tensor, ...]) -> Outputs:
    dq, dk, dv = gradients or (None, None, None)
    return Outputs(out, lse, dq, dk, dv)


def _make_row_outputs(out: Tensor, lse: Tensor, gradients: tuple[Tensor, ...]) -> Outputs:
    return _make_outputs(out[None], lse[None], tuple(gradient[None] for gradient in gradients))
