"""Something that runs today does not run any more with the new versions.

What it checks: `attncheck upgrade --try` runs parity and smoke with the new versions from a temporary folder; where one
of them gives no answer, it is run once without them.

Why it matters: a job would not start either.

What to do: stay with the installed version; the evidence has the reason.

Source: attncheck/stacks/upgrade/trial.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN926", "error", lambda snapshot: (), by_engine=True)
