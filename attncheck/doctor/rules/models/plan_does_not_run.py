"""The model raises, or its process dies, when it is trained under the plan.

What it checks: `attncheck smoke` trains a small model of the architecture under the plan; here it got no number to
judge.

Why it matters: the job ends the same way, at its start or at the first batch of such a shape.

What to do: read the error: a package is missing, or a kernel does not take the model's head size, dtype or mask. A
process that dies (SIGSEGV) is killed by a compiled kernel, often by a build that left out what was called. smoke tries
other implementations and says which of them run.

Source: the measurement itself; flash-attn-3 0251105a built for head sizes 64 and 128 dies at 160 and 192.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN347", "error", lambda snapshot: (), by_engine=True)
