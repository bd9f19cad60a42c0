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
    deduplicate,
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

    def merge(self, later: "BenchSection") -> "BenchSection":
        """Return the sections of two models as one."""
        return BenchSection(
            self.measured_on.merge(later.measured_on),
            deduplicate((*self.backends, *later.backends)),
            (*self.verdicts, *later.verdicts),
            (*self.runs, *later.runs),
            later.rates if later.rates != DeviceRates() else self.rates,
            (*self.timings, *later.timings),
            (*self.recommendations, *later.recommendations),
            deduplicate((*self.published, *later.published)),
        )


SECTION = BenchSection
