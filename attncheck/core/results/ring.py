"""Measurements across ranks in addition to parity and determinism: communication, growth of errors, the adapter,
timings."""

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
from attncheck.core.results.collectives import Communication
from attncheck.core.results.error_growth import Growth
from attncheck.core.results.hf_adapter import AdapterVerdict
from attncheck.core.results.ring_timings import LOCAL_FLASH, LOCAL_FLASH_FULL, RingRates, RingTiming


@dataclass(frozen=True)
class RingSection(MeasuredSection):
    """What commands with --ring-size measured across ranks.

    `communication` comes first, before anything is computed. `growth` and `adapter` belong to parity, the rest to
    bench: `verdicts` and `runs` are parity's for the timed shape.
    """

    name: ClassVar[str] = "ring"
    answering_outcomes: ClassVar[tuple[Outcome, ...]] = ("ok",)
    measured_on: MeasuredOn = MeasuredOn()
    communication: Communication = Communication()
    growth: tuple[Growth, ...] = ()  # growth of errors over several ring sizes
    adapter: tuple[AdapterVerdict, ...] = ()  # verdicts on ring-flash-attn's Hugging Face adapter
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    runs: tuple[Run, ...] = ()
    rates: RingRates = RingRates()
    timings: tuple[RingTiming, ...] = ()
    conclusions: tuple[str, ...] = ()  # drawn from the timings

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each row of a scheme."""
        return tuple(
            (timing.outcome, describe_no_timing(timing.outcome, timing.reason))
            for timing in self.timings
            if timing.backend not in (LOCAL_FLASH, LOCAL_FLASH_FULL)
        )


SECTION = RingSection
