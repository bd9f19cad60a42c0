"""The checks of a gate and their outcomes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from attncheck.core.report import OpenQuestion, Section

Check = Literal["doctor", "lint", "parity", "smoke", "rehearsal", "agree", "determinism", "bench"]
# In running order: first the checks that only read, then those that may stop a job, faster ones first; speed is last.
CHECKS: tuple[Check, ...] = get_args(Check)
# The last check: having nothing to lint is not a gap.
Outcome = Literal["clean", "found", "unanswered", "left out", "not linted"]


@dataclass(frozen=True)
class Stage:
    """One check of a gate: its outcome, its duration, and in one line why it gave no result, if so."""

    check: Check
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    answers: Mapping[str, int] = field(default_factory=dict)  # number of verdicts by answer: "pass" -> 163


@dataclass(frozen=True)
class GateSection(Section):
    """A gate's checks, in running order; its level, if any, and the time in seconds that the level promises."""

    name: ClassVar[str] = "gate"
    stages: tuple[Stage, ...] = ()
    level: int = 0
    promised_seconds: float = 0.0

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The checks that gave no result."""
        open_stages = [stage for stage in self.stages if stage.outcome in ("unanswered", "left out")]
        return tuple(OpenQuestion(stage.check, stage.outcome, stage.reason) for stage in open_stages)


SECTION = GateSection
