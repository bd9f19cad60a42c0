"""A ring is slower than what was asked for.

What it checks: `attncheck bench --ring-size N --min-efficiency X`: iterations per second of the fastest correct scheme,
forward and backward, as a share of what one device's flash-attn would leave each of N ranks, against X.

Why it matters: a plain ring under a causal mask leaves half of every GPU idle (53 % on 8), and nothing says so.

What to do: the evidence says what each scheme could reach and reaches; take zigzag or stripe where the sequence is one
document, more tokens per rank where communication is what limits, a faster link where that does not help.

Source: the measurement itself; attncheck/ring/roofline.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN806", "error", lambda snapshot: (), by_engine=True)
