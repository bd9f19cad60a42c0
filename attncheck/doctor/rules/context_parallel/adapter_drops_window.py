"""ring-flash-attn's Hugging Face adapter runs a sliding-window model with other windows.

What it checks: two small models with a sliding window, one shorter than a rank's shard and one as long, sharded over
the ranks: their logits against the whole model's, against the model without its window, and against one whose window
is a token wider.

Why it matters: silent. The adapter compares the window with the length of the local shard, and attends to everything
while the shard is not longer; beyond, its window is one token wider than transformers' own from 4.56.0 on.

What to do: Ulysses for this model (verl, DeepSpeed ALST), or no context parallelism. Where no model was named, this is
a warning: only models with windows are concerned.

Source: the measurement itself; ring_flash_attn 0.1.8, adapters/hf_adapter.py (`key_states.shape[1] > sliding_window`,
`window_size`); transformers 4.56.0, modeling_flash_attention_utils.py (`sliding_window - 1`).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN532", "error", lambda snapshot: (), by_engine=True)
