"""A launch's documents are not computed as each alone would be.

What it checks: `attncheck smoke LAUNCH` holds every token's last hidden state in the first step of the launch against
eager attention in float32 on the token's document alone. Where they differ, it computes what the token would have to
see for such a value: the documents before it, padding, what follows, wrong positions, the slice of one rank alone where
rows are spread over ranks, or another scale, window or softcap of the scores; and names what fits.

Why it matters: packed documents that see one another, or positions that run on, train another model than the one that
is served, and no log shows it.

What to do: the setting that the finding offers, which was run; else the framework's packing off.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN432", "error", lambda snapshot: (), by_engine=True)
