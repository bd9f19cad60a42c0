"""An attention backend is less precise on this machine than a kernel of its class should be.

What it checks: as `backend-wrong`; the error is over its budget, and less than three times it.

Why it matters: something rounds where it need not: scores in the io dtype, sums in 16 bits, an approximate exponential.
Training mostly survives that; it is worth knowing before another fault hides behind it.

What to do: compare with the other backends of the table. torch's CPU flash kernel is known for it in bfloat16 beyond
4096 keys: its gradients lose precision with length.

Source: the measurement itself; attncheck/core/verdicts.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN602", "warning", lambda snapshot: (), by_engine=True)
