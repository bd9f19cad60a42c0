"""flash-attn's four block functions, with the arity, the LSE layout and the wrapping of each of its generations.

Before 2.7 they are functions; a forward returns 8 values and a backward its gradients with softmax_d. Since 2.7 they
are custom operators of torch, whose function ring-flash-attn finds as `_init_fn`; a forward returns 4 values, a
backward softmax_d. Gradients are written into the given buffers, whatever their strides; softmax_lse is read as it lies
in memory, for its strides are not looked at (csrc/flash_attn/flash_api.cpp, `mha_bwd`, 2.5.9.post1 and 2.8.3). What the
kernels leave unwritten of an LSE is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from attncheck.ring.emulated_flash_attn.block import Mask, backward, forward
from attncheck.ring.emulated_flash_attn.refusals import refuse
from attncheck.ring.emulated_flash_attn.signatures import BLOCKS, signature

Place = tuple[Any, Any, Any]  # a document's queries, its keys, its LSE: each an index
ROUNDED = 128  # softmax_d has room for blocks of queries


def block_functions(generation: str) -> dict[str, Any]:
    """Return the four functions of a generation, by name; operators take the place of those made before."""
    return {name: _function(name, generation) for name in BLOCKS}


def _function(name: str, generation: str) -> Any:
    told, body = signature(name, generation), _backward if "backward" in name else _forward

    def function(*args: Any, **words: Any) -> Any:
        bound = told.bind(*args, **words)
        bound.apply_defaults()
        refuse(bound.arguments, generation)
        return body(bound.arguments, generation)

    function.__name__, function.__signature__ = name, told  # type: ignore[attr-defined]
    if generation < "2.7":
        return function
    written = ("dq", "dk", "dv") if body is _backward else ()
    operator: Callable[..., Any] = torch.library.custom_op
    return operator(f"flash_attn::{name}", function, mutates_args=written)


def _forward(words: dict[str, Any], generation: str) -> tuple[Any, ...]:
    q, k, v = words["q"], words["k"], words["v"]
    out, lse = torch.zeros_like(q), q.new_full(_lse_shape(words, generation), torch.nan, dtype=torch.float32)
    for index, (rows, keys, own) in enumerate(_documents(words, generation)):
        out[rows], lse[own] = forward(q[rows], k[keys], v[keys], _mask(words, index))
    dropped, state = q.new_empty(0), torch.zeros(2, dtype=torch.int64, device=q.device)
    if generation < "2.7":
        return out, q, k, v, out, lse, dropped, state
    return out, lse, dropped, state


def _backward(words: dict[str, Any], generation: str) -> Any:
    dout, q, k, v, out = (words[name] for name in ("dout", "q", "k", "v", "out"))
    dq, dk, dv = (
        torch.zeros_like(x) if words[name] is None else words[name] for name, x in (("dq", q), ("dk", k), ("dv", v))
    )
    shape = _lse_shape(words, generation)
    lse = words["softmax_lse"].as_strided(shape, torch.empty(shape, device="meta").stride())
    softmax_d = torch.zeros(_softmax_d_shape(words, shape), device=q.device)
    for index, (rows, keys, own) in enumerate(_documents(words, generation)):
        mask = _mask(words, index)
        dq[rows], dk[keys], dv[keys], delta = backward(dout[rows], q[rows], k[keys], v[keys], out[rows], lse[own], mask)
        begin = own[1].start + ROUNDED * index if len(shape) == 2 else 0
        where = (*own[:-1], slice(begin, begin + delta.shape[1]))
        softmax_d[where] = delta
    return (dq, dk, dv, softmax_d) if generation < "2.7" else softmax_d


def _mask(words: dict[str, Any], index: int) -> Mask:
    window = words["window_size"] if "window_size" in words else (words["window_size_left"], words["window_size_right"])
    slopes = words["alibi_slopes"]
    if slopes is not None and slopes.dim() == 2:
        slopes = slopes[index]
    right = 0 if words["causal"] else window[1]
    return Mask(words["softmax_scale"], (window[0], right), words.get("softcap", 0.0), slopes)


def _documents(words: dict[str, Any], generation: str) -> Iterator[Place]:
    """Yield where each document, or each row of a batch, has its queries, its keys and its LSE."""
    if "cu_seqlens_q" not in words:
        for row in range(len(words["q"])):
            yield row, row, (row, slice(None), slice(None))
        return
    ends = zip(*(pairwise(words[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k")))
    for index, (rows, keys) in enumerate(ends):
        padded = (index, slice(None), slice(0, rows[1] - rows[0]))
        yield slice(*rows), slice(*keys), padded if generation < "2.6" else (slice(None), slice(*rows))


def _lse_shape(words: dict[str, Any], generation: str) -> tuple[int, ...]:
    q = words["q"]
    if "cu_seqlens_q" not in words:
        return len(q), q.shape[2], q.shape[1]
    if generation < "2.6":
        return len(words["cu_seqlens_q"]) - 1, q.shape[1], words["max_seqlen_q"]
    return q.shape[1], len(q)


def _softmax_d_shape(words: dict[str, Any], lse: tuple[int, ...]) -> tuple[int, ...]:
    if len(lse) == 2:
        return lse[0], lse[1] + ROUNDED * (len(words["cu_seqlens_q"]) - 1)
    return *lse[:-1], -(-lse[-1] // ROUNDED) * ROUNDED
