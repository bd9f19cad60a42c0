"""What parity measured."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import BackendState, MeasuredOn, MeasuredSection, Outcome, Run, Verdict


@dataclass(frozen=True)
class ParitySection(MeasuredSection):
    """What `attncheck parity` measured: each run of a backend on a case, and its verdict."""

    name: ClassVar[str] = "parity"
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    runs: tuple[Run, ...] = ()

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each case of a backend."""
        return tuple((run.outcome, run.reason) for run in self.runs)


SECTION = ParitySection
