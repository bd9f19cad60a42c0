"""An attention backend returns wrong results on this machine.

What it checks: `attncheck parity` runs each backend forward and backward on many cases and compares out, LSE, dq, dk
and dv with a float64 reference. The error is counted in units of the rounding noise that an ideal kernel must make;
three times the budget, a NaN where the reference is finite, or a structured probe that is contradicted is a wrong
result.

Why it matters: the loss is silently wrong, or right with wrong gradients.

What to do: use the backend that the fix names, which passed the same cases here; update the package; report the case
upstream with the script that `--explain-case` writes.

Source: the measurement itself; attncheck/core/verdicts.py for the rule, attncheck/attention/reference/oracle.py
for the noise model.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN601", "error", lambda snapshot: (), by_engine=True)
