"""With these sizes the job runs and never takes an optimiser's step.

What it checks: the arithmetic of batches: what one rollout or epoch holds against what one step needs.

Why it matters: the job generates, logs and saves, and the model never changes.

What to do: make the batch of a step smaller or that of a rollout larger.

Source: named in each finding, file and line of the framework's release.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each combination of sizes that takes no training step."""
    yield from setting_problems(snapshot, "no_step")


RULE = Rule("ATN445", "error", check, needs=frozenset({"job"}))
