"""The framework replaces a setting of the launch.

What it checks: the launch's settings against the places in the framework's source that overwrite them.

Why it matters: the job does not train with the requested setting. At most one warning in a long log says so. For
example, OpenRLHF replaces sdpa by flash_attention_2 if samples are packed.

What to do: set the value that really runs, or change the setting that makes the framework replace it.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN442", "warning", partial(setting_problems, consequence="replaces"), needs=frozenset({"job"}))
