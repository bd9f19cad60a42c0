"""The loss function that the plan trains with is not the cross-entropy, or does not repeat.

What it checks: torch's, a log-sum-exp by chunks, or flash-attn's triton kernel, whichever the plan uses, on
vocabularies of 64 and 32007 words with ignored labels, logits that overflow an unguarded exp, and labels in the last
words: value and gradient against float64, in float32 and in the dtype of the plan's logits. Ignored labels must have
no gradient, a batch of nothing else no loss; flash-attn's kernel must give the same bits over 16 repeats where the
plan is deterministic, and warns elsewhere.

Why it matters: a loss that counts ignored labels, or forgets the end of the vocabulary, falls nicely while it trains
on prompts and padding, or on another distribution. AdamW hides a gradient that is scaled.

What to do: compute the loss with torch in float32, or by chunks where memory is short.

Source: the measurement itself; flash_attn 2.8.3, `ops/triton/cross_entropy.py`.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN342", "error", lambda snapshot: (), by_engine=True)
