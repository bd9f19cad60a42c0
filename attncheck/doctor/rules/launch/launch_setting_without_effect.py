"""A setting of the launch has no effect in this version of the framework.

What it checks: settings that the framework's release accepts but never uses: determinism switches of removed
functions, liger for a model that it has no kernels for. The attention and the dtype are also compared with the values
that the program's own source gives `from_pretrained`, if the program does not read the setting.

Why it matters: the launch looks reproducible or fast, but is not.

What to do: remove the setting, or use the one that works.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN443", "warning", partial(setting_problems, consequence="ignores"), needs=frozenset({"job"}))
