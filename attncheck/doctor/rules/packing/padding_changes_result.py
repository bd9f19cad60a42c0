"""Padded batches do not equal the unpadded.

What it checks: `attncheck smoke` pads documents on the right and on the left, with the mask a tokenizer makes, and
compares logits and gradients with each document alone; also in a batch with a row of padding only, which must not make
NaN. It is an error for the side that the plan pads on; the other side is told.

Why it matters: silent where padding is attended to, an exception where a version refuses a side: transformers before
5.2 raises for Qwen2 and others under flash attention with a cache and right padding, later ones do not.

What to do: what smoke finds to mend it: no cache while training, the other side, another implementation.

Source: the measurement itself; huggingface/transformers #29419, #36100 (the refusal); pytorch/pytorch #103749 (rows
without any visible key).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN421", "error", lambda snapshot: (), by_engine=True)
