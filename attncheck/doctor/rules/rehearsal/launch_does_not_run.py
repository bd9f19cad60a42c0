"""A launch that was cut small ends with an error.

What it checks: `attncheck smoke LAUNCH` points the launch at a small model and made-up documents, and runs it for a few
steps with the user's interpreter and launcher.

Why it matters: what ends the small run mostly ends the large one, an hour later. It is a warning: what was made smaller
may be at fault, and the last lines say what it was.

What to do: read the last lines of the launch that the finding shows; `--verbose` shows how it was cut.

Source: the run itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN435", "warning", lambda snapshot: (), by_engine=True)
