"""flash-attn's public functions over the emulated block functions: dense and packed, with k and v apart or as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attncheck.ring.emulated_flash_attn.signatures import PUBLIC, parameters, signature


class _Attention(torch.autograd.Function):
    """Attention by a pair of block functions, which are given `words`; LSE has no gradient, as the genuine one's."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: tuple[Any, Any], words: dict[str, Any], more: dict[str, Any]
    ) -> Any:
        """Return out, LSE and the dropped probabilities."""
        found = blocks[0](q=q, k=k, v=v, **words, **more)
        out, lse, dropped = found[:3] if len(found) == 4 else (found[0], *found[5:7])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.block, ctx.words = blocks[1], words
        ctx.mark_non_differentiable(lse, dropped)
        return out, lse, dropped

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Tensor) -> Any:
        """Return dq, dk, dv."""
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        given = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse, "dq": dq, "dk": dk, "dv": dv}
        ctx.block(**given, **ctx.words, deterministic=False)
        return dq, dk, dv, None, None, None


def public_functions(generation: str, blocks: dict[str, Any]) -> dict[str, Any]:
    """Return the six public functions of a generation over its block functions, by name."""
    return {name: _function(name, generation, blocks) for name in PUBLIC}


def _function(name: str, generation: str, blocks: dict[str, Any]) -> Callable[..., Any]:
    told, stem = signature(name, generation), "_flash_attn_varlen_" if "varlen" in name else "_flash_attn_"
    pair = blocks[stem + "forward"], blocks[stem + "backward"]
    taken = parameters(stem + "forward", generation)

    def function(*args: Any, **given: Any) -> Any:
        bound = told.bind(*args, **given)
        bound.apply_defaults()
        words = bound.arguments
        q, k, v = _parts(words)
        head_dim = q.shape[-1]
        more: dict[str, Any] = {"return_softmax": False}
        if "block_table" in taken:
            more["block_table"] = words.pop("block_table", None)
        q, k, v = (torch.nn.functional.pad(x, (0, -head_dim % 8)) for x in (q, k, v))
        out, lse, dropped = _Attention.apply(q, k, v, pair, _block_words(words, head_dim, generation), more)
        out = out[..., :head_dim]
        return (out, lse, dropped) if words["return_attn_probs"] else out

    function.__name__, function.__signature__ = name, told  # type: ignore[attr-defined]
    return function


def _parts(words: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Take q, k and v out of the arguments; stacked ones are stacked before the heads."""
    if "qkv" in words:
        q, k, v = words.pop("qkv").unbind(-3)
    elif "kv" in words:
        q, (k, v) = words.pop("q"), words.pop("kv").unbind(-3)
    else:
        q, k, v = (words.pop(name) for name in "qkv")
    return q, k, v


def _block_words(words: dict[str, Any], head_dim: int, generation: str) -> dict[str, Any]:
    """Return the arguments of a public function as both block functions take them, defaults made explicit."""
    kept = {name: x for name, x in words.items() if name not in ("return_attn_probs", "deterministic")}
    if kept["softmax_scale"] is None:
        kept["softmax_scale"] = head_dim**-0.5
    if "cu_seqlens" in kept:
        kept["cu_seqlens_q"] = kept["cu_seqlens_k"] = kept.pop("cu_seqlens")
        kept["max_seqlen_q"] = kept["max_seqlen_k"] = kept.pop("max_seqlen")
    if generation >= "2.7":
        kept["window_size_left"], kept["window_size_right"] = kept.pop("window_size")
    return kept
