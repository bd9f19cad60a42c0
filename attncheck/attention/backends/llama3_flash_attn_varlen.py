"""ring-flash-attn's llama3 scheme: the packed row is cut into contiguous shards, some kv heads are gathered at a time.

RoPE positions: rank r of n holds tokens r·S/n … (r+1)·S/n - 1 of the packed row, each at its position in its own
document (`sharding.positions`, "contiguous"). `heads_k_stride` must divide the kv heads. dk and dv are added up over
the ranks by a reduce-scatter in the io dtype, which costs precision: 1.25 · sqrt(1 + n/5).
Source: zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/llama3_flash_attn_varlen.py; arXiv 2407.21783, 3.3.2.
"""

from __future__ import annotations

from attncheck.attention.backends._ring_schemes import ring_backend

BACKEND = ring_backend(
    "llama3_flash_attn_varlen", "ring-flash-attn, llama3, packed", "contiguous", packed=True, takes_heads_k_stride=True
)
