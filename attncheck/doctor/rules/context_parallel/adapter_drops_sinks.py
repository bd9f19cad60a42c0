"""ring-flash-attn's Hugging Face adapter leaves out attention sinks.

What it checks: a small gpt-oss sharded over the ranks: its logits against the whole model's, and against the model
without its sinks.

Why it matters: silent. The adapter's functions swallow `s_aux` among their other arguments: every layer is normalised
without its sink, and the sinks get no gradient.

What to do: no ring attention for this model; Ulysses with a kernel that knows sinks. Where no model was named, this is
a warning: only models with sinks are concerned.

Source: the measurement itself; ring_flash_attn 0.1.8, adapters/hf_adapter.py (the `**kwargs` of its adapters);
transformers 5.17.0, models/gpt_oss/modeling_gpt_oss.py (`s_aux=self.sinks`).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN533", "error", lambda snapshot: (), by_engine=True)
