"""The GPUs are of another compute capability than the lock's, or there are none.

What it checks: the compute capabilities of the visible GPUs against the lock's. GPUs of another name or number and the
same capability are shown among what moved, and are no finding.

Why it matters: kernels are compiled and chosen by compute capability: another one runs other code, or none, and what
was measured for the lock says nothing about it.

What to do: run on a machine of the lock's kind, or keep a lock for each kind.

Source: attncheck/stacks/lock/machine.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN918", "error", lambda snapshot: (), by_engine=True)
