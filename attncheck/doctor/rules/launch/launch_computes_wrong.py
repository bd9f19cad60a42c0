"""The framework accepts these settings but silently computes something else.

What it checks: combinations of settings, model and versions under which the framework's own code is known to compute
attention (or recurrent state) over the wrong tokens: packing that gives a model's recurrent layers no boundaries,
packing that does not separate documents, heads that are not sliced with their sinks.

Why it matters: nothing fails and the loss falls. The error is noticed in evaluation, if at all.

What to do: change the settings as the finding says; `attncheck smoke` measures the leak on the model itself.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN444", "error", partial(setting_problems, consequence="wrong"), needs=frozenset({"job"}))
