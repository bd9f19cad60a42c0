"""The attention implementation changes what the model computes.

What it checks: `attncheck smoke` gives documents to a small model of the architecture one at a time, under the plan's
implementation and with transformers' eager attention in float32: logits and gradients, in float32 to 1e-5, in 16 bits
within twice what eager attention itself is off.

Why it matters: silent. A soft-cap, a window, a scale or sinks that an implementation leaves out make another model of
the same weights; the loss goes down all the same.

What to do: take an implementation that computes what the model asks for; smoke tries the others and says which does.

Source: the measurement itself; transformers 5.17.0, integrations/sdpa_attention.py (no soft-cap: gemma2 under sdpa is
off by 1.7e-3 in float32).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN345", "error", lambda snapshot: (), by_engine=True)
