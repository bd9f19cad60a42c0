"""An ignore of the policy has run out.

What it checks: each `ignore` in attncheck.toml or [tool.attncheck] names its last day; this one's is over (UTC).

Why it matters: what it allowed is reported again, as was agreed; an exception that nobody looks at any more is how a
known fault stays in production.

What to do: mend what it was for and remove it, or give it another reason and another date.

Source: attncheck/gate/apply.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN904", "warning", lambda snapshot: (), by_engine=True)
