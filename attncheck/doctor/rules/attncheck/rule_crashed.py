"""A rule of attncheck itself crashed.

What it checks: attncheck runs every rule on its own; one that raises is reported here and the others still run.

Why it matters: the defect that rule looks for has not been looked for.

What to do: report it with the evidence line and the output of `attncheck probe`, which holds no secrets.

Source: attncheck/doctor/engine.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN901", "warning", lambda snapshot: (), by_engine=True)
