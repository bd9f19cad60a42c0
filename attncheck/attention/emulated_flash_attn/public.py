"""flash-attn's public functions, with the emulated block functions: dense and varlen, with k and v split or packed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .signatures import PUBLIC, function_parameters, make_signature


class _Attention(torch.autograd.Function):
    """Attention with a pair of block functions, called with `kwargs`; LSE has no gradient, as in flash-attn."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        blocks: tuple[Any, Any],
        kwargs: dict[str, Any],
        forward_kwargs: dict[str, Any],
    ) -> Any:
        """Return out, LSE and the dropped probabilities."""
        returned = blocks[0](q=q, k=k, v=v, **kwargs, **forward_kwargs)
        out, lse, dropped = returned[:3] if len(returned) == 4 else (returned[0], *returned[5:7])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.backward_block, ctx.kwargs = blocks[1], kwargs
        ctx.mark_non_differentiable(lse, dropped)
        return out, lse, dropped

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Tensor) -> Any:
        """Return dq, dk, dv."""
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        tensors = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse, "dq": dq, "dk": dk, "dv": dv}
        ctx.backward_block(**tensors, **ctx.kwargs, deterministic=False)
        return dq, dk, dv, None, None, None


def make_public_functions(generation: str, blocks: dict[str, Any]) -> dict[str, Any]:
    """Return the six public functions of a generation, based on its block functions, by name."""
    return {name: _make_function(name, generation, blocks) for name in PUBLIC}


def _make_function(name: str, generation: str, blocks: dict[str, Any]) -> Callable[..., Any]:
    function_signature = make_signature(name, generation)
    stem = "_flash_attn_varlen_" if "varlen" in name else "_flash_attn_"
    block_pair = blocks[stem + "forward"], blocks[stem + "backward"]
    forward_parameters = function_parameters(stem + "forward", generation)

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = function_signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        q, k, v = _pop_qkv(arguments)
        head_dim = q.shape[-1]
        forward_kwargs: dict[str, Any] = {"return_softmax": False}
        if "block_table" in forward_parameters:
            forward_kwargs["block_table"] = arguments.pop("block_table", None)
        q, k, v = (torch.nn.functional.pad(x, (0, -head_dim % 8)) for x in (q, k, v))
        block_kwargs = _block_kwargs(arguments, head_dim, generation)
        out, lse, dropped = _Attention.apply(q, k, v, block_pair, block_kwargs, forward_kwargs)
        out = out[..., :head_dim]
        return (out, lse, dropped) if arguments["return_attn_probs"] else out

    function.__name__, function.__signature__ = name, function_signature  # type: ignore[attr-defined]
    return function


def _pop_qkv(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Remove q, k and v from the arguments and return them; packed ones are stacked before the heads."""
    if "qkv" in arguments:
        q, k, v = arguments.pop("qkv").unbind(-3)
    elif "kv" in arguments:
        q, (k, v) = arguments.pop("q"), arguments.pop("kv").unbind(-3)
    else:
        q, k, v = (arguments.pop(name) for name in "qkv")
    return q, k, v


def _block_kwargs(arguments: dict[str, Any], head_dim: int, generation: str) -> dict[str, Any]:
    """Return the arguments of a public function for both block functions, with explicit defaults."""
    kwargs = {name: x for name, x in arguments.items() if name not in ("return_attn_probs", "deterministic")}
    if kwargs["softmax_scale"] is None:
        kwargs["softmax_scale"] = head_dim**-0.5
    if "cu_seqlens" in kwargs:
        kwargs["cu_seqlens_q"] = kwargs["cu_seqlens_k"] = kwargs.pop("cu_seqlens")
        kwargs["max_seqlen_q"] = kwargs["max_seqlen_k"] = kwargs.pop("max_seqlen")
    if generation >= "2.7":
        kwargs["window_size_left"], kwargs["window_size_right"] = kwargs.pop("window_size")
    return kwargs
