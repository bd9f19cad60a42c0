"""The job waits forever.

What it checks: settings that make the framework wait without a deadline: a placement that cannot be filled, or a
process group that is never complete.

Why it matters: there is no error. The allocation is paid for, but nothing runs.

What to do: change the settings as the finding says.

Source: named in each finding, file and line of the framework's release.
"""

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    yield from setting_problems(snapshot, "waits")


RULE = Rule("ATN446", "error", check, needs=frozenset({"job"}))
