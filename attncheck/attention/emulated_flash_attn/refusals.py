"""Refuses the arguments that flash-attn's kernels refuse, with their messages, and those not emulated.

Source: the checks of csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3. Two checks are attncheck's own: a document
longer than its max_seqlen, and an LSE that is not float32. The kernels silently leave memory unwritten or misread it.
"""

from itertools import pairwise
from typing import Any

import torch

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
