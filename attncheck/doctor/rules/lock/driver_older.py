"""The driver is older than the lock's.

What it checks: the version of the NVIDIA driver against the lock's; a newer one is shown among what moved, and is no
finding.

Why it matters: an older driver may not serve torch's CUDA (ATN201 says so where it is known), and has faults that the
lock's no longer had.

What to do: install the lock's driver or a newer one.

Source: attncheck/stacks/lock/machine.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN919", "warning", lambda snapshot: (), by_engine=True)
