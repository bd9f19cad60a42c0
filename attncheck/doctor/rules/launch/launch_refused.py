"""The framework stops with an error on these settings, at start or at the first step.

What it checks: the launch's settings against the assertions and errors of the framework's own source, in the version
that is installed (or was named), with this model and these GPUs.

Why it matters: many of these checks run after the model was loaded, or in the first batch. On a cluster this wastes
an allocation, and the message is often a bare AssertionError.

What to do: change the settings as the finding says.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN441", "error", partial(setting_problems, consequence="refuses"), needs=frozenset({"job"}))
