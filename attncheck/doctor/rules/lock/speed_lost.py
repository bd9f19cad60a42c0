"""A backend is slower than when the lock was made.

What it checks: bench's median times in reports given with `--report`, against the lock's of the same case, passes and
mode on the same kind of GPU: more than 10 % slower, beyond both 95 % confidence intervals. Where the plain product of
matrices that bench times beside it is slower too, the GPU is (clocks, heat, another job), and as much is allowed.

Why it matters: a job that takes a tenth longer costs a tenth more, and nothing else says so.

What to do: go back to the lock's version of what moved, which the evidence names; `attncheck bench` says which backend
is the fastest now.

Source: attncheck/stacks/lock/numbers.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN916", "warning", lambda snapshot: (), by_engine=True)
