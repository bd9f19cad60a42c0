"""ring-flash-attn's striped attention: rank r holds every n-th token, so that each block is nearly causal.

RoPE positions: rank r of n holds positions r, r+n, r+2n, … (`sharding.positions`, "stripe").
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/stripe_flash_attn.py, which asserts `causal`; Striped
Attention, arXiv 2311.09431.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend("stripe_flash_attn", "ring-flash-attn, stripe", "stripe", causal=True)
