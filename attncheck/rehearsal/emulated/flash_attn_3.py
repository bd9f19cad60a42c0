"""The source of `flash_attn_interface.py`, the module of FlashAttention-3: flash-attn 2's emulation, by its signatures.

As in hopper/flash_attn_interface.py of Dao-AILab/flash-attention, without decoding, fp8's scales and chunks.
"""

from typing import Any

from flash_attn import flash_attn_interface as second

flash_attn_with_kvcache = second.flash_attn_with_kvcache


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Return out of (batch, seqlen, heads, head_dim), and LSE with `return_attn_probs`."""
    given = second.flash_attn_func(q, k, v, 0.0, softmax_scale, causal, window_size, softcap, return_attn_probs=True)
    return given[:2] if return_attn_probs else given[0]


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Return out of packed documents (tokens, heads, head_dim), and LSE with `return_attn_probs`."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = (0.0, softmax_scale, causal, window_size, softcap)
    given = second.flash_attn_varlen_func(q, k, v, *lengths, *options, return_attn_probs=True)
    return given[:2] if return_attn_probs else given[0]
