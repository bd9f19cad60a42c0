"""The stack is not the lock's, and nothing that was measured is worse.

What it checks: versions, wheel tags and contents (a sha256 of what RECORD lists, without bytecode and scripts) of the
packages that matter, Python and torch's CUDA, against attncheck.lock.json; the reports given with `--report` hold
numbers that the lock has too, and none of them is worse.

Why it matters: it tells which change to look at first, should something go wrong later.

What to do: nothing; `attncheck lock` records the new stack, with its reports.

Source: attncheck/stacks/lock/packages.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN912", "note", lambda snapshot: (), by_engine=True)
