"""A backend is not as reproducible as when the lock was made.

What it checks: determinism's answer on each case and mode in reports given with `--report`, against the lock's on the
same kind of device.

Why it matters: runs of the same seed no longer agree, and a job that must be reproducible is not.

What to do: go back to the lock's version of what moved, which the evidence names; see the page of ATN711 or ATN712.

Source: attncheck/stacks/lock/numbers.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN917", "error", lambda snapshot: (), by_engine=True)
