"""flash-attn's four block functions, with each generation's number of arguments, LSE layout and wrapping.

Before 2.7 they are functions; a forward returns 8 values and a backward its gradients with softmax_d. Since 2.7 they
are custom operators of torch, and ring-flash-attn uses their `_init_fn`; a forward returns 4 values, a backward
softmax_d. Gradients are written into the given buffers, with any strides. softmax_lse is read in memory order, because
its strides are ignored (csrc/flash_attn/flash_api.cpp, `mha_bwd`, 2.5.9.post1 and 2.8.3). Elements of an LSE that the
kernels leave unwritten are NaN.

`refuse` raises what the kernels raise (the checks of csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3), and refuses
what is not emulated. Two checks are attncheck's own: a document longer than its max_seqlen, and an LSE that is not
float32. The kernels silently leave memory unwritten or misread it.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from .block import ScoreSettings, backward, forward
from .signatures import BLOCKS, make_signature

_DTYPE_NAMES = {"k": "key", "v": "value", "out": "out", "dout": "dout"}
_SHAPED_LIKE = {"v": "k", "out": "q", "dout": "q", "dq": "q", "dk": "k", "dv": "v"}
_UNSUPPORTED = ("block_table", "leftpad_k", "seqused_k")


def refuse(arguments: dict[str, Any], generation: str) -> None:
    """Raise RuntimeError for arguments that the kernels refuse, NotImplementedError for what the emulation lacks."""
    q, k, varlen, backward = arguments["q"], arguments["k"], "max_seqlen_q" in arguments, "dout" in arguments
    _require(q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
    for name, label in _DTYPE_NAMES.items():
        same_dtype = name not in arguments or arguments[name].dtype == q.dtype
        _require(same_dtype, f"query and {label} must have the same dtype")
    for name in ("dq", "dk", "dv"):
        buffer = arguments.get(name)
        _require(buffer is None or buffer.dtype == q.dtype, f"{name} must have the same dtype as q")
        _require(buffer is None or buffer.stride(-1) == 1, f"{name} must have contiguous last dimension")
    for name, like in _SHAPED_LIKE.items():
        shape = arguments[like].shape
        same_shape = arguments.get(name) is None or arguments[name].shape == shape
        _require(same_shape, f"{name} must have shape {tuple(shape)}")
    direction = "backward" if backward else "forward"
    _require(q.shape[-1] <= 256, f"FlashAttention {direction} only supports head dimension at most 256")
    _require(q.shape[-1] % 8 == 0 or not (backward or generation >= "2.7"), "head_size should be a multiple of 8")
    _require(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    float32_lse = not backward or arguments["softmax_lse"].dtype == torch.float32
    _require(float32_lse, "softmax_lse is read as float32, whatever it is")
    for side in "qk" if varlen else "":
        _check_cu_seqlens(arguments, side)
    if arguments["dropout_p"]:
        raise NotImplementedError("the emulated flash-attn kernels have no dropout")
    if any(arguments.get(name) is not None for name in _UNSUPPORTED):
        raise NotImplementedError("the emulated flash-attn kernels have no paged or padded keys")


def _check_cu_seqlens(arguments: dict[str, Any], side: str) -> None:
    cu_seqlens, max_seqlen = arguments[f"cu_seqlens_{side}"], arguments[f"max_seqlen_{side}"]
    _require(cu_seqlens.dtype == torch.int32, f"cu_seqlens_{side} must have dtype int32")
    longest = max((end - begin for begin, end in pairwise(cu_seqlens.tolist())), default=0)
    message = f"cu_seqlens_{side} has a document of {longest} tokens, max_seqlen_{side} is {max_seqlen}"
    _require(longest <= max_seqlen, message)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


DocumentIndex = tuple[Any, Any, Any]  # indices of a document's queries, keys and LSE
QUERY_BLOCK = 128  # softmax_d is padded to a multiple of this many queries


def make_block_functions(generation: str) -> dict[str, Any]:
    """Return the four functions of a generation, by name; new custom operators replace earlier ones."""
    return {name: _make_function(name, generation) for name in BLOCKS}


def _make_function(name: str, generation: str) -> Any:
    function_signature, body = make_signature(name, generation), _run_backward if "backward" in name else _run_forward

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = function_signature.bind(*args, **kwargs)
        bound.apply_defaults()
        refuse(bound.arguments, generation)
        return body(bound.arguments, generation)

    function.__name__, function.__signature__ = name, function_signature  # type: ignore[attr-defined]
    if generation < "2.7":
        return function
    mutated = ("dq", "dk", "dv") if body is _run_backward else ()
    custom_op: Callable[..., Any] = torch.library.custom_op
    return custom_op(f"flash_attn::{name}", function, mutates_args=mutated)


def _run_forward(arguments: dict[str, Any], generation: str) -> tuple[Any, ...]:
    q, k, v = arguments["q"], arguments["k"], arguments["v"]
    out, lse = torch.zeros_like(q), q.new_full(_lse_shape(arguments, generation), torch.nan, dtype=torch.float32)
    for index, (rows, keys, lse_index) in enumerate(_iter_documents(arguments, generation)):
        out[rows], lse[lse_index] = forward(q[rows], k[keys], v[keys], _make_settings(arguments, index))
    dropped, rng_state = q.new_empty(0), torch.zeros(2, dtype=torch.int64, device=q.device)
    if generation < "2.7":
        return out, q, k, v, out, lse, dropped, rng_state
    return out, lse, dropped, rng_state


def _run_backward(arguments: dict[str, Any], generation: str) -> Any:
    dout, q, k, v, out = (arguments[name] for name in ("dout", "q", "k", "v", "out"))
    dq, dk, dv = (
        torch.zeros_like(x) if arguments[name] is None else arguments[name]
        for name, x in (("dq", q), ("dk", k), ("dv", v))
    )
    shape = _lse_shape(arguments, generation)
    lse = arguments["softmax_lse"].as_strided(shape, torch.empty(shape, device="meta").stride())
    softmax_d = torch.zeros(_softmax_d_shape(arguments, shape), device=q.device)
    for index, (rows, keys, lse_index) in enumerate(_iter_documents(arguments, generation)):
        settings = _make_settings(arguments, index)
        dq[rows], dk[keys], dv[keys], delta = backward(
            dout[rows], q[rows], k[keys], v[keys], out[rows], lse[lse_index], settings
        )
        begin = lse_index[1].start + QUERY_BLOCK * index if len(shape) == 2 else 0
        delta_index = (*lse_index[:-1], slice(begin, begin + delta.shape[1]))
        softmax_d[delta_index] = delta
    return (dq, dk, dv, softmax_d) if generation < "2.7" else softmax_d


def _make_settings(arguments: dict[str, Any], index: int) -> ScoreSettings:
    if "window_size" in arguments:
        left, right = arguments["window_size"]
    else:
        left, right = arguments["window_size_left"], arguments["window_size_right"]
    if arguments["causal"]:
        right = 0
    alibi_slopes = arguments["alibi_slopes"]
    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        alibi_slopes = alibi_slopes[index]
    return ScoreSettings(arguments["softmax_scale"], (left, right), arguments.get("softcap", 0.0), alibi_slopes)


def _iter_documents(arguments: dict[str, Any], generation: str) -> Iterator[DocumentIndex]:
    """Yield the indices of the queries, the keys and the LSE of each document, or of each row of a batch."""
    if "cu_seqlens_q" not in arguments:
        for row in range(len(arguments["q"])):
            yield row, row, (row, slice(None), slice(None))
        return
    boundaries = zip(*(pairwise(arguments[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k")))
    for index, (rows, keys) in enumerate(boundaries):
        padded = (index, slice(None), slice(0, rows[1] - rows[0]))
        yield slice(*rows), slice(*keys), padded if generation < "2.6" else (slice(None), slice(*rows))


def _lse_shape(arguments: dict[str, Any], generation: str) -> tuple[int, ...]:
    q = arguments["q"]
    if "cu_seqlens_q" not in arguments:
        return len(q), q.shape[2], q.shape[1]
    if generation < "2.6":
        return len(arguments["cu_seqlens_q"]) - 1, q.shape[1], arguments["max_seqlen_q"]
    return q.shape[1], len(q)


def _softmax_d_shape(arguments: dict[str, Any], lse_shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(lse_shape) == 2:
        return lse_shape[0], lse_shape[1] + QUERY_BLOCK * (len(arguments["cu_seqlens_q"]) - 1)
    return *lse_shape[:-1], -(-lse_shape[-1] // QUERY_BLOCK) * QUERY_BLOCK
