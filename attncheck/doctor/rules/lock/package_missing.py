"""A package that the lock has is not installed.

What it checks: `attncheck lock --check` looks for each package of attncheck.lock.json among the installed ones.

Why it matters: the job was known to be good with it; without it, a framework may fall back to another implementation
and say nothing.

What to do: install the lock's version; or write the lock anew where the package is meant to be gone.

Source: attncheck/stacks/lock/packages.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN911", "error", lambda snapshot: (), by_engine=True)
