"""What flash-attn's kernels refuse, in their words, and what their emulation cannot do.

Source: the checks of csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3. Two are attncheck's own: where a document is
longer than its max_seqlen, or LSE is not float32, the kernels leave memory unwritten or read it as something else, and
say nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

_ALIKE = {"k": "key", "v": "value", "out": "out", "dout": "dout"}
_SHAPED = {"v": "k", "out": "q", "dout": "q", "dq": "q", "dk": "k", "dv": "v"}
_ABSENT = ("block_table", "leftpad_k", "seqused_k")


def refuse(words: dict[str, Any], generation: str) -> None:
    """Raise RuntimeError for arguments that the kernels refuse, NotImplementedError for what the emulation lacks."""
    q, k, packed, back = words["q"], words["k"], "max_seqlen_q" in words, "dout" in words
    _need(q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
    for name, called in _ALIKE.items():
        _need(name not in words or words[name].dtype == q.dtype, f"query and {called} must have the same dtype")
    for name in ("dq", "dk", "dv"):
        buffer = words.get(name)
        _need(buffer is None or buffer.dtype == q.dtype, f"{name} must have the same dtype as q")
        _need(buffer is None or buffer.stride(-1) == 1, f"{name} must have contiguous last dimension")
    for name, like in _SHAPED.items():
        shape = words[like].shape
        _need(words.get(name) is None or words[name].shape == shape, f"{name} must have shape {tuple(shape)}")
    way = "backward" if back else "forward"
    _need(q.shape[-1] <= 256, f"FlashAttention {way} only supports head dimension at most 256")
    _need(q.shape[-1] % 8 == 0 or not (back or generation >= "2.7"), "head_size should be a multiple of 8")
    _need(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    _need(not back or words["softmax_lse"].dtype == torch.float32, "softmax_lse is read as float32, whatever it is")
    for side in "qk" if packed else "":
        _places(words, side)
    if words["dropout_p"]:
        raise NotImplementedError("the emulated flash-attn kernels have no dropout")
    if any(words.get(name) is not None for name in _ABSENT):
        raise NotImplementedError("the emulated flash-attn kernels have no paged or padded keys")


def _places(words: dict[str, Any], side: str) -> None:
    places, most = words[f"cu_seqlens_{side}"], words[f"max_seqlen_{side}"]
    _need(places.dtype == torch.int32, f"cu_seqlens_{side} must have dtype int32")
    longest = max((end - begin for begin, end in pairwise(places.tolist())), default=0)
    _need(longest <= most, f"cu_seqlens_{side} has a document of {longest} tokens, max_seqlen_{side} is {most}")


def _need(right: bool, message: str) -> None:
    if not right:
        raise RuntimeError(message)
