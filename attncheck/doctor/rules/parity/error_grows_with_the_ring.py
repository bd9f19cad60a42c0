"""A context-parallel scheme loses precision as the ring grows.

What it checks: the same problem on every power of two up to the ring size; z_rms of out, dq, dk and dv, divided by what
merged 16-bit blocks (a constant) and sums in the io dtype (a known growth) legitimately cost. A rise of more than a
fifth for each doubling is reported.

Why it matters: what is a rounding error on 2 ranks is a wrong gradient on 64, and the loss looks reasonable all the way
("the forward loss value can look quite reasonable", zhuzilin/ring-flash-attention#42).

What to do: take a scheme of the table whose error stays flat, or a smaller ring with more sequence packing.

Source: the measurement itself; attncheck/core/results/error_growth.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN605", "warning", lambda snapshot: (), by_engine=True)
