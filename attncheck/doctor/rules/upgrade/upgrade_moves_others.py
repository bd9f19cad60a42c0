"""An upgrade requires other versions of packages than are installed.

What it checks: Requires-Dist of the new version, where its wheel is at hand, against what would be there with it.

Why it matters: an installer moves these packages as well, and `pip install --no-deps` leaves them as they are, so that
the new version meets something that it excludes.

What to do: name them on the same command line, so that what they break is judged too; `--try` has pip choose.

Source: attncheck/stacks/upgrade/requirements.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN925", "note", lambda snapshot: (), by_engine=True)
