"""Runs Ulysses over a group: an all-to-all from tokens to heads, attention over whole rows, and the reverse all-to-all.

Outside the all-to-alls, rank r of n has tokens r·S/n … of all heads; between them, it has heads r·H/n … of all tokens.
The gradient of each all-to-all is the other one. LSE is not returned, because it remains split by heads.
"""

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
from attncheck.attention.calls.common import backward, deterministic_algorithms, make_leaves, repeat_kv
from attncheck.attention.calls.flash_attn import limits_as_refusals, split_output, supported_kwargs
from attncheck.attention.calls.ulysses_heads import local_case, sdpa_backend
from attncheck.attention.inputs import Inputs
from attncheck.core.cases import Case


def scatter_heads(x: Tensor, group: Any) -> Tensor:
    """Return all tokens of a share of the heads: (batch, tokens/n, heads, d) -> (batch, tokens, heads/n, d)."""
    n = dist.get_world_size(group)
    batch, tokens, heads, d = x.shape
    send_buffer = x.reshape(batch, tokens, n, heads // n, d).permute(2, 0, 1, 3, 4).contiguous()
    return _all_to_all(send_buffer, group).transpose(0, 1).reshape(batch, n * tokens, heads // n, d)


def scatter_tokens(x: Tensor, group: Any) -> Tensor:
    """Return all heads of a share of the tokens: (batch, tokens, heads/n, d) -> (batch, tokens/n, heads, d)."""
    n = dist.get_world_size(group)
    batch, tokens, heads, d = x.shape
    send_buffer = x.reshape(batch, n, tokens // n, heads, d).transpose(0, 1).contiguous()
    return _all_to_all(send_buffer, group).permute(1, 2, 0, 3, 4).reshape(batch, tokens // n, n * heads, d)


def _all_to_all(send_buffer: Tensor, group: Any) -> Tensor:
    """Return the data that each rank sent to this one, in the order of ranks; `send_buffer[r]` goes to rank r."""
    received = torch.empty_like(send_buffer)
    dist.all_to_all_single(received, send_buffer, group=group)
    return received


def tokens_to_heads(x: Tensor, group: Any) -> Tensor:
    """Return all tokens of some heads from some tokens of all heads; differentiable."""
    result: Tensor = _TokensToHeads.apply(x, group)
    return result


def heads_to_tokens(x: Tensor, group: Any) -> Tensor:
    """Return some tokens of all heads from all tokens of some heads; differentiable."""
    result: Tensor = _HeadsToTokens.apply(x, group)
    return result


class _TokensToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return scatter_heads(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return scatter_tokens(gradient, ctx.group), None


class _HeadsToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return scatter_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return scatter_heads(gradient, ctx.group), None


def _run_shard(inputs: Inputs, attend: Callable[[Case, Tensor, Tensor, Tensor], Tensor]) -> Outputs:
    """Run a rank's shard with `attend` between the all-to-alls, on (batch, tokens, heads, head_dim)."""
    case, n = inputs.case, inputs.case.context_parallel_size
    leaves = make_leaves(inputs)
    repeated = [leaves[0], *(_repeat_kv_heads(x, n // case.num_kv_heads) for x in leaves[1:])]
    q, k, v = (_TokensToHeads.apply(x, inputs.group) for x in repeated)
    out = _HeadsToTokens.apply(attend(local_case(case), q, k, v), inputs.group)
    outputs = backward(inputs, out, leaves)
    return replace(outputs, operators=())  # the autograd node is attncheck's own, and does not name the kernel


def _repeat_kv_heads(x: Tensor, times: int) -> Tensor:
    """Return `(batch, tokens, heads, d)` with each kv head repeated `times` times."""
    return repeat_kv(x.transpose(1, 2), times).transpose(1, 2) if times > 1 else x


def run_sdpa(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard with SDPA's FLASH_ATTENTION, or EFFICIENT_ATTENTION if CUDA needs a mask."""
    with deterministic_algorithms(deterministic):
        return _run_shard(inputs, _attend_sdpa)


def _attend_sdpa(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    name, grouped = sdpa_backend(case, q.device.type), case.num_heads != case.num_kv_heads
    native = name == "FLASH_ATTENTION"
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    if grouped and not native:
        heads[1:] = [repeat_kv(x, case.num_heads // case.num_kv_heads) for x in heads[1:]]
    mask = masks.build_mask(case, q.device.type) if case.needs_mask else None
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


def run_flash_attn(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard with flash-attn 2."""

    def attend(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kwargs = {"softmax_scale": case.softmax_scale, "causal": case.causal, "window_size": case.window_size}
        kwargs |= {"softcap": case.softcap, "deterministic": deterministic}
        return _attend_flash_attn(case, q, k, v, kwargs)

    return _run_shard(inputs, attend)


def _attend_flash_attn(case: Case, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]) -> Tensor:
    import flash_attn

    title = "flash-attn 2"
    with limits_as_refusals(title):
        if case.layout != "packed":
            function = flash_attn.flash_attn_func
            return split_output(function(q, k, v, **supported_kwargs(function, title, **kwargs)))[0]
        function = flash_attn.flash_attn_varlen_func
        cu_seqlens = masks.build_cu_seqlens(case.seqlens_q, q.device.type)
        kwargs |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
        kwargs |= {"max_seqlen_q": max(case.seqlens_q), "max_seqlen_k": max(case.seqlens_k)}
        return split_output(function(q[0], k[0], v[0], **supported_kwargs(function, title, **kwargs)))[0][None]
