"""Runs Ulysses over a group: from tokens to heads by an all-to-all, attention over whole rows, and back.

Rank r of n holds tokens r·S/n … of all heads before, and heads r·H/n … of all tokens between. The gradient of an
all-to-all is the one that goes back. No LSE is returned: it stays with the heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attncheck.attention import masks
from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls import flash_attn as fitted_call
from attncheck.attention.calls.common import deterministic_algorithms, finish, leaves, repeat_kv
from attncheck.attention.calls.ulysses_heads import kernel, local
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case


def spread_heads(x: Tensor, group: Any) -> Tensor:
    """Return all tokens of a share of the heads: (batch, tokens/n, heads, d) -> (batch, tokens, heads/n, d)."""
    n = dist.get_world_size(group)
    batch, tokens, heads, d = x.shape
    sent = x.reshape(batch, tokens, n, heads // n, d).permute(2, 0, 1, 3, 4).contiguous()
    return _exchanged(sent, group).transpose(0, 1).reshape(batch, n * tokens, heads // n, d)


def spread_tokens(x: Tensor, group: Any) -> Tensor:
    """Return all heads of a share of the tokens: (batch, tokens, heads/n, d) -> (batch, tokens/n, heads, d)."""
    n = dist.get_world_size(group)
    batch, tokens, heads, d = x.shape
    sent = x.reshape(batch, n, tokens // n, heads, d).transpose(0, 1).contiguous()
    return _exchanged(sent, group).permute(1, 2, 0, 3, 4).reshape(batch, tokens // n, n * heads, d)


def _exchanged(sent: Tensor, group: Any) -> Tensor:
    """Return what each rank sent us, in the order of ranks; `sent` holds what each is to get."""
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return got


def to_heads(x: Tensor, group: Any) -> Tensor:
    """Return all tokens of some heads from some tokens of all heads, with its gradient."""
    found: Tensor = _ToHeads.apply(x, group)
    return found


def to_tokens(x: Tensor, group: Any) -> Tensor:
    """Return some tokens of all heads from all tokens of some heads, with its gradient."""
    found: Tensor = _ToTokens.apply(x, group)
    return found


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return spread_heads(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return spread_tokens(gradient, ctx.group), None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return spread_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return spread_heads(gradient, ctx.group), None


def _run(inputs: Inputs, attend: Callable[[Case, Tensor, Tensor, Tensor], Tensor]) -> Outputs:
    """Run a rank's shard with `attend` between the all-to-alls, on (batch, tokens, heads, head_dim)."""
    case, n = inputs.case, inputs.case.context_parallel_size
    taken = leaves(inputs)
    repeated = [taken[0], *(_repeated(x, n // case.num_kv_heads) for x in taken[1:])]
    q, k, v = (_ToHeads.apply(x, inputs.group) for x in repeated)
    out = _ToTokens.apply(attend(local(case), q, k, v), inputs.group)
    return replace(finish(inputs, out, taken), ran=())  # its autograd node is ours, and says nothing of the kernel


def _repeated(x: Tensor, times: int) -> Tensor:
    return repeat_kv(x.transpose(1, 2), times).transpose(1, 2) if times > 1 else x


def sdpa(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard with SDPA's FLASH_ATTENTION, or EFFICIENT_ATTENTION where CUDA needs a mask."""
    with deterministic_algorithms(deterministic):
        return _run(inputs, _sdpa)


def _sdpa(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    name, grouped = kernel(case, q.device.type), case.num_heads != case.num_kv_heads
    native = name == "FLASH_ATTENTION"
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    if grouped and not native:
        heads[1:] = [repeat_kv(x, case.num_heads // case.num_kv_heads) for x in heads[1:]]
    mask = masks.whole(case, q.device.type) if case.needs_mask else None
    try:
        with sdpa_kernel([getattr(SDPBackend, name)]):
            out = scaled_dot_product_attention(
                heads[0],
                heads[1],
                heads[2],
                attn_mask=mask,
                is_causal=case.causal and mask is None,
                scale=case.softmax_scale,
                enable_gqa=grouped and native,
            )
    except RuntimeError as error:
        if re.search("No available kernel|No viable backend", str(error)):
            raise Refused(str(error).splitlines()[0]) from None
        raise
    return out.transpose(1, 2)


def flash_attn(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard with flash-attn 2."""

    def attend(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        words = {"softmax_scale": case.softmax_scale, "causal": case.causal, "window_size": case.window_size}
        words |= {"softcap": case.softcap, "deterministic": deterministic}
        return _flash_attn(case, q, k, v, words)

    return _run(inputs, attend)


def _flash_attn(case: Case, q: Tensor, k: Tensor, v: Tensor, words: dict[str, Any]) -> Tensor:
    import flash_attn

    title = "flash-attn 2"
    with fitted_call.limits(title):
        if case.layout != "packed":
            function = flash_attn.flash_attn_func
            return fitted_call.parted(function(q, k, v, **fitted_call.fitted(function, title, **words)))[0]
        function = flash_attn.flash_attn_varlen_func
        places = masks.cu_seqlens(case.seqlens_q, q.device.type)
        words |= {"cu_seqlens_q": places, "cu_seqlens_k": places}
        words |= {"max_seqlen_q": max(case.seqlens_q), "max_seqlen_k": max(case.seqlens_k)}
        return fitted_call.parted(function(q[0], k[0], v[0], **fitted_call.fitted(function, title, **words)))[0][None]
