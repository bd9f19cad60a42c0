"""Attention sinks, which flash-attn 2 does not have: a logit of each head that takes part in the softmax only.

As eager attention with sinks in transformers 5.17.0 (models/gpt_oss/modeling_gpt_oss.py), document by document.
"""

import functools
import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


def take_sinks(name: str) -> Callable[[Function], Function]:
    """Return a decorator that adds a keyword argument with sinks (heads,) to an attention function."""

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            sinks = options.pop(name, None)
            if sinks is None:
                return function(*arguments, **options)
            bound = own.bind(*arguments, **options)
            bound.apply_defaults()
            return _attend(bound.arguments, sinks), None

        sink = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        call.__signature__ = own.replace(parameters=[*own.parameters.values(), sink])  # type: ignore[attr-defined]
        return call

    return decorate


def _attend(given: dict[str, Any], sinks: Tensor) -> Tensor:
    """Return out, in the shape and dtype of q. Raises RuntimeError for float32, as the kernels."""
    q, k, v = (given[name] if given[name].dim() == 3 else given[name].flatten(0, 1) for name in "qkv")
    if q.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    rows = len(given["q"])
    borders = [given.get(f"cu_seqlens_{side}") for side in "qk"]
    own = [range(0, len(x) + 1, len(x) // rows) if cu is None else cu.tolist() for cu, x in zip(borders, (q, k))]
    parts = [
        _attend_document(q[slice(*queries)], k[slice(*keys)], v[slice(*keys)], sinks, given)
        for queries, keys in zip(*map(pairwise, own))
    ]
    return torch.cat(parts).to(q.dtype).view_as(given["q"])


def _attend_document(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, given: dict[str, Any]) -> Tensor:
    """Return out of one document (tokens, heads, head_dim) in float32."""
    k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = given["softmax_scale"] or q.shape[-1] ** -0.5
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if given["softcap"]:
        scores = given["softcap"] * torch.tanh(scores / given["softcap"])
    distance = torch.arange(len(k)) - torch.arange(len(k) - len(q), len(k))[:, None]
    left, right = (-1 if side is None else side for side in given["window_size"])
    right = 0 if given["causal"] else right
    hidden = (distance > (len(k) if right < 0 else right)) | (-distance > (len(k) if left < 0 else left))
    scores = scores.masked_fill(hidden, float("-inf"))
    sink = sinks.float()[:, None, None].expand(-1, len(q), 1)
    return torch.einsum("hqk,khd->qhd", torch.cat([scores, sink], -1).softmax(-1)[..., :-1], v)
