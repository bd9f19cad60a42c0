"""Calls torch's ring attention: by `context_parallel` on CUDA, by its private templates on the CPU."""

import re
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import backward, deterministic_algorithms, make_leaves, repeat_kv
from attncheck.attention.inputs import Inputs
from attncheck.core.sharding import shard_ranges


def run_context_parallel(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run a rank's shard with SDPA inside `context_parallel`, forward and backward."""
    try:
        from torch.distributed.tensor.experimental import context_parallel
    except ImportError:
        raise Refused("this torch has no torch.distributed.tensor.experimental.context_parallel") from None
    case = inputs.case
    q, k, v = make_leaves(inputs)
    # context_parallel replaces them with the tokens that torch assigns to this rank
    positions = torch.arange(case.seqlen_q, device=inputs.device)
    with (
        deterministic_algorithms(deterministic),
        context_parallel(_device_mesh(inputs.group, inputs.device), buffers=[positions], buffer_seq_dims=[0]),
    ):
        check_sharding(inputs, positions)
        return replace(backward(inputs, _call_sdpa(inputs, q, k, v), (q, k, v)), operators=())


def check_sharding(inputs: Inputs, positions: Tensor) -> None:
    """Raise `ValueError` if torch assigned different tokens to this rank than `core.sharding` does."""
    if positions.tolist() != list(chain(*shard_ranges("zigzag", inputs.case, inputs.rank))):
        raise ValueError(
            f"this torch does not shard by zigzag: rank {inputs.rank} holds {_format_positions(positions)}"
        )


@cache
def _device_mesh(group: Any, device: str) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(group, device)


def _format_positions(positions: Tensor) -> str:
    tokens = positions.tolist()
    return f"tokens {', '.join(map(str, tokens[:4]))}, … {tokens[-1]}"


def _call_sdpa(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return SDPA's output; the function is looked up at each call, because `context_parallel` replaces it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    case = inputs.case
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            out = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                scale=case.softmax_scale,
                enable_gqa=case.num_heads != case.num_kv_heads,
            )
    except RuntimeError as error:
        if re.search("No available kernel|No viable backend", str(error)):
            raise Refused(str(error).splitlines()[0]) from None
        raise
    return out.transpose(1, 2)


def run_templates(inputs: Inputs) -> Outputs:
    """Run a rank's shard with torch's ring templates around the CPU's flash operator."""
    case = inputs.case
    q, k, v = make_leaves(inputs)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    heads[1:] = [repeat_kv(x, case.num_heads // case.num_kv_heads) for x in heads[1:]]
    out, lse = _TemplatedRing.apply(*heads, inputs.group, case.softmax_scale)
    return replace(backward(inputs, out.transpose(1, 2), (q, k, v), lse), operators=())


class _TemplatedRing(torch.autograd.Function):
    """The templates' forward and backward on (batch, heads, tokens, head_dim), joined as in torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, scale: float) -> tuple[Tensor, Tensor]:
        from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention

        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = _templated_ring_attention(group, 2, operator, q, k, v, is_causal=True, dropout_p=0.0, scale=scale)
        ctx.group, ctx.scale = group, scale
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from torch.distributed.tensor.experimental._context_parallel import _attention as ring

        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = ring._templated_ring_attention_backward(
            ctx.group,
            2,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            grad_out=dout.contiguous(),
            grad_out_name="grad_out",
            query=q,
            key=k,
            value=v,
            out=out,
            logsumexp=lse,
            is_causal=True,
            dropout_p=0.0,
            scale=ctx.scale,
        )
        return dq, dk, dv, None, None
