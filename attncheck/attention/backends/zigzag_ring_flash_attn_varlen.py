"""ring-flash-attn's zigzag ring over packed documents: each document is cut into two chunks a rank by itself.

RoPE positions: rank r of n holds, of each document, chunks r and 2n-1-r of 2n (`sharding.positions`,
"zigzag_documents"). One `cu_seqlens` serves queries and keys.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/zigzag_ring_flash_attn_varlen.py, which asserts `causal`.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend(
    "zigzag_ring_flash_attn_varlen", "ring-flash-attn, zigzag, packed", "zigzag_documents", packed=True, causal=True
)
