"""The framework goes on with another setting than the one that is written.

What it checks: the launch's settings against the places in the framework's source that overwrite them.

Why it matters: what trains is not what was requested. A line of warning in a long log is all that says so, if
there is one at all: OpenRLHF puts flash_attention_2 in the place of sdpa as soon as samples are packed.

What to do: write what really runs, or change what makes the framework replace it.

Source: named in each finding, file and line of the framework's release.
"""

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    yield from setting_problems(snapshot, "replaces")


RULE = Rule("ATN442", "warning", check, needs=frozenset({"job"}))
