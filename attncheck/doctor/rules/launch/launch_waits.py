"""The job waits forever.

What it checks: settings that make the framework wait without a deadline: a placement that cannot be filled, or a
process group that is never complete.

Why it matters: there is no error. The allocation is paid for, but nothing runs.

What to do: change the settings as the finding says.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN446", "error", partial(setting_problems, consequence="waits"), needs=frozenset({"job"}))
