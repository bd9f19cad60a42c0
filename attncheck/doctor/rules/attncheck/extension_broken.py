"""An extension of attncheck cannot be loaded.

What it checks: every built-in rule and every plugin found through the entry points is imported; one that raises,
has no `RULE` or reuses a code is reported here and the rest run.

Why it matters: what it would have checked has not been checked.

What to do: update or remove the plugin named in the finding.

Source: attncheck/core/registry.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN902", "warning", lambda snapshot: (), by_engine=True)
