"""The job waits for ever for something that will not come.

What it checks: settings under which the framework waits without a deadline: a placement that cannot be filled, a
group of processes that is never complete.

Why it matters: nothing fails; the allocation is paid for and nothing runs.

What to do: change the settings as the finding says.

Source: named in each finding, file and line of the framework's release.
"""

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem for each combination of settings that waits for ever."""
    yield from setting_problems(snapshot, "waits")


RULE = Rule("ATN446", "error", check, needs=frozenset({"job"}))
