"""A backend's error crossed a bound since the lock was made.

What it checks: parity's worst error of each backend in each family of cases, in units of its budget, against the
lock's, where both are of the same suite, seed and device: from within the budget to beyond it, or from there to a wrong
result. Errors that stay on their side of a bound do not count, however they move.

Why it matters: the job was known to be right; with this stack, its loss or gradients are off.

What to do: go back to the lock's version of what moved, which the evidence names; see the page of ATN601 or ATN602.

Source: attncheck/stacks/lock/numbers.py; attncheck/core/verdicts.py for the budgets.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN914", "error", lambda snapshot: (), by_engine=True)
