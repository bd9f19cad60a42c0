"""What bench measured on one device."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import (
    BackendState,
    MeasuredOn,
    MeasuredSection,
    Outcome,
    Run,
    Verdict,
    describe_no_timing,
)
from attncheck.core.results.timings import DeviceRates, PublishedShare, Recommendation, Timing


@dataclass(frozen=True)
class BenchSection(MeasuredSection):
    """What `attncheck bench` measured on one device: parity of the timed cases, and the timings."""

    name: ClassVar[str] = "bench"
    answering_outcomes: ClassVar[tuple[Outcome, ...]] = ("ok",)
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()  # verdicts of parity
    runs: tuple[Run, ...] = ()
    rates: DeviceRates = DeviceRates()
    timings: tuple[Timing, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    published: tuple[PublishedShare, ...] = ()

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each row."""
        return tuple((timing.outcome, describe_no_timing(timing.outcome, timing.reason)) for timing in self.timings)


SECTION = BenchSection
