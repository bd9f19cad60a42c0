"""ring-flash-attn's zigzag ring: two chunks a rank, an early and a late one, so that causal work is even.

RoPE positions: rank r of n holds chunks r and 2n-1-r of 2n (`sharding.positions`, "zigzag").
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/zigzag_ring_flash_attn.py, which asserts `causal`.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend("zigzag_ring_flash_attn", "ring-flash-attn, zigzag", "zigzag", causal=True)
