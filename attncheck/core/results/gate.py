"""What a gate did, check by check, and what it let pass knowingly; nouns, plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Check = Literal["doctor", "lint", "parity", "determinism", "smoke", "bench"]
CHECKS: tuple[Check, ...] = get_args(Check)  # in the order in which each later one means something
Outcome = Literal["clean", "found", "unanswered", "left out"]


@dataclass(frozen=True)
class Stage:
    """One check of a gate: how it ended, how long it took, and in one line why, where it did not answer."""

    check: Check
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    answers: Mapping[str, int] = field(default_factory=dict)  # of its verdicts: "pass" -> 163


@dataclass(frozen=True)
class Allowance:
    """Findings that a policy lets pass: a code or prefix, why, and until when (an ISO date, the last day included)."""

    code: str
    reason: str
    until: str
