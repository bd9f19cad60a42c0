"""With these sizes the job runs but never takes an optimiser step.

What it checks: the batch sizes: how much data one rollout or epoch provides, and how much one step needs.

Why it matters: the job generates, logs and saves, but the model never changes.

What to do: make the batch of a step smaller, or the batch of a rollout larger.

Source: named in each finding, file and line of the framework's release.
"""

from functools import partial

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule

RULE = Rule("ATN445", "error", partial(setting_problems, consequence="no_step"), needs=frozenset({"job"}))
