"""A backend that was measured for the lock is refused now, or cannot be had.

What it checks: backends and families of cases that have an error in the lock, against the reports given with
`--report`: all cases of the family are refused, or the backend is not there at all.

Why it matters: the job then fails, or runs on another backend with other speed and errors.

What to do: go back to the lock's version of what moved, which the evidence names; `attncheck backends` says why a
backend is not here.

Source: attncheck/stacks/lock/numbers.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN915", "error", lambda snapshot: (), by_engine=True)
