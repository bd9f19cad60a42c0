"""A backend is right, and less precise than the policy asks for.

What it checks: the worst error of each verdict that passes, in units of its budget (what an ideal kernel's rounding
leaves room for), against `max-error` of the policy's thresholds.

Why it matters: a budget allows for every kernel of a class; a project that knows its own numbers may want to hear of
it when a driver or a release doubles an error that is still within bounds.

What to do: compare with the report of the environment that set the threshold; move back to its versions, or raise
`max-error` knowingly.

Source: attncheck/core/verdicts.py for the unit; attncheck/gate/apply.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN606", "error", lambda snapshot: (), by_engine=True)
