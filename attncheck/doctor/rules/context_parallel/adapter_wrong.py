"""ring-flash-attn's Hugging Face adapter is entered, and the model it runs is not the one given.

What it checks: a small model sharded over the ranks against the whole one in float32: the logits of every token and
the gradients of every parameter, summed over the ranks, may be off by three times what rounding alone makes of the
whole model in the same dtype. Other tokens in the first shard must change the logits of their document in the last
shard, and no other document's.

Why it matters: the loss is finite, and wrong.

What to do: no ring attention with these versions; `attncheck parity --ring-size` tells whether the scheme beneath the
adapter (llama3_flash_attn_varlen) or the adapter is at fault.

Source: the measurement itself; attncheck/ring/worker/hf_adapter.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN531", "error", lambda snapshot: (), by_engine=True)
