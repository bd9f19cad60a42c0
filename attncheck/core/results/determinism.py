"""What determinism measured."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import BackendState, MeasuredOn, MeasuredSection, Outcome, Repeats, Verdict


@dataclass(frozen=True)
class DeterminismSection(MeasuredSection):
    """What `attncheck determinism` measured: repeated runs of each backend in each mode, and its verdict."""

    name: ClassVar[str] = "determinism"
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    repeats: tuple[Repeats, ...] = ()

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each case of a backend in a mode."""
        return tuple((repeats.outcome, repeats.reason) for repeats in self.repeats)


SECTION = DeterminismSection
