"""ring-flash-attn's Hugging Face adapter is never entered: the ring is switched off without a word.

What it checks: `substitute_hf_flash_attn` is called on every rank, a small model runs its shard under the
`attn_implementation` asked for, and the calls of the adapter's attention are counted; other tokens are put into the
first shard, and the last shard's logits are looked at.

Why it matters: silent. The adapter replaces flash_attention_2 alone. Under sdpa, eager, flash_attention_3, 4 or a
kernel from the Hub each rank attends to its own shard only: the loss is finite, memory and speed look fine, and no
token sees an earlier shard.

What to do: `attn_implementation="flash_attention_2"`, literally.

Source: the measurement itself; ring_flash_attn 0.1.8, adapters/hf_adapter.py, its last line.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN530", "error", lambda snapshot: (), by_engine=True)
