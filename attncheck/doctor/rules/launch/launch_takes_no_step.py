"""With these sizes the job runs and never takes an optimiser's step.

What it checks: the arithmetic of batches: what one rollout or epoch holds against what one step needs.

Why it matters: the job generates, logs and saves, and the model never changes.

What to do: make the batch of a step smaller or that of a rollout larger.

Source: named in each finding, file and line of the framework's release.
"""

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem for each combination of sizes that takes no training step."""
    yield from setting_problems(snapshot, "no_step")


RULE = Rule("ATN445", "error", check, needs=frozenset({"job"}))
