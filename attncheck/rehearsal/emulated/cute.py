"""The source of `flash_attn/cute/__init__.py`, the module of FlashAttention-4: flash-attn 2's emulation.

By the signatures of flash-attn-4 4.0.0b36, flash_attn/cute/interface.py, without modifications of scores and masks, and
without decoding. Both functions return out and LSE; with sinks, the LSE is None.
"""

from typing import Any

from flash_attn import flash_attn_interface as second
from flash_attn.sinks import take_sinks


@take_sinks("learnable_sink")  # type: ignore[untyped-decorator]
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Any:
    """Return out of (batch, seqlen, heads, head_dim), and LSE."""
    options = (0.0, softmax_scale, causal, _close(window_size), softcap)
    return second.flash_attn_func(q, k, v, *options, return_attn_probs=True)[:2]


@take_sinks("learnable_sink")  # type: ignore[untyped-decorator]
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Any:
    """Return out of packed documents (tokens, heads, head_dim), and LSE."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = (0.0, softmax_scale, causal, _close(window_size), softcap)
    return second.flash_attn_varlen_func(q, k, v, *lengths, *options, return_attn_probs=True)[:2]


def _close(window_size: tuple[int | None, int | None]) -> tuple[int, ...]:
    """Return a window with flash-attn 2's mark of an open side."""
    return tuple(-1 if side is None else side for side in window_size)
