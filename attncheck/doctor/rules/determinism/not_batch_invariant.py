"""An attention backend gives a sequence other bits when other sequences share its batch.

What it checks: `attncheck determinism` runs one sequence alone, then as the first of eight, then as the sixth, and
compares its rows bit by bit.

Why it matters: log-probabilities of the same text differ between a rollout and the trainer, or between two batch sizes,
without either being wrong; on-policy methods see it as a shift of policy.

What to do: keep batch shapes equal where bits matter, or use a backend that is invariant in the table.

Source: the measurement itself; Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025-09).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN713", "note", lambda snapshot: (), by_engine=True)
