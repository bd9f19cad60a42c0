"""What bench measured on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import MeasuredSection, deduplicate
from attncheck.core.results.timings import DeviceRates, Recommendation, Timing
from attncheck.core.verdicts import BackendState, MeasuredOn, Run, Verdict


@dataclass(frozen=True)
class BenchSection(MeasuredSection):
    """What `attncheck bench` measured on one device: parity of the very cases that were timed, and the timings."""

    name: ClassVar[str] = "bench"
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()  # of parity
    runs: tuple[Run, ...] = ()
    rates: DeviceRates = DeviceRates()
    timings: tuple[Timing, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()

    def merge(self, later: BenchSection) -> BenchSection:
        """Return both, as of two models."""
        return BenchSection(
            self.measured_on.merge(later.measured_on),
            deduplicate((*self.backends, *later.backends)),
            (*self.verdicts, *later.verdicts),
            (*self.runs, *later.runs),
            later.rates if later.rates != DeviceRates() else self.rates,
            (*self.timings, *later.timings),
            (*self.recommendations, *later.recommendations),
        )


SECTION = BenchSection
