"""ring-flash-attn's plain ring: contiguous shards, keys and values travel, blocks are merged by their LSE.

RoPE positions: rank r of n holds positions r·S/n … (r+1)·S/n - 1 (`sharding.positions`, "contiguous"). A causal mask
leaves the last rank the most work.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/ring_flash_attn.py.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend("ring_flash_attn", "ring-flash-attn, ring", "contiguous")
