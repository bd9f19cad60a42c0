"""ring-flash-attn's plain ring over packed documents: each document is sharded by itself, over all ranks.

RoPE positions: rank r of n holds, of a document of length s, positions r·s/n … (r+1)·s/n - 1 (`sharding.positions`,
"contiguous_documents"). One `cu_seqlens` serves queries and keys.
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/ring_flash_attn_varlen.py.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend("ring_flash_attn_varlen", "ring-flash-attn, ring, packed", "contiguous_documents", packed=True)
