"""The stack is not the lock's, and nothing says that this is harmless.

What it checks: as `stack-moved`; but no number of the lock was measured again, or some number is worse.

Why it matters: a release of torch, flash-attn or transformers may change what attention computes and how fast, without
an error.

What to do: measure again, and give the reports to `attncheck lock --check --report FILE`; go back to the lock's version
by the command that the finding has; or record the new stack with `attncheck lock`.

Source: attncheck/stacks/lock/packages.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN913", "warning", lambda snapshot: (), by_engine=True)
