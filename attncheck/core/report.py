"""The report: what was seen, what is wrong, what could not be judged, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attncheck.core.findings import SEVERITIES, Finding, Severity, Skip
from attncheck.core.job import LintedLaunch
from attncheck.core.results.collectives import Communication
from attncheck.core.results.error_growth import Growth
from attncheck.core.results.gate import Allowance, Stage
from attncheck.core.results.hf_adapter import AdapterVerdict
from attncheck.core.results.ring_timings import RingRates, RingTiming
from attncheck.core.results.smoke import PlanRun
from attncheck.core.results.timings import DeviceRates, Recommendation, Timing
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Repeats, Run, Verdict
from attncheck.core.snapshot import Snapshot


@dataclass(frozen=True)
class Settings:
    """A plan as one framework writes it, ready to paste."""

    framework: str
    text: str


@dataclass(frozen=True)
class Report:
    """The answer: what was seen, what is wrong, what could not be judged, and which rules found nothing."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    skips: tuple[Skip, ...]
    passed: tuple[str, ...]  # codes of the rules that looked and found nothing
    suppressed: tuple[str, ...] = ()  # codes switched off by --select, --ignore or the configuration
    needs: tuple[str, ...] = ()  # what the profile holds to matter: "flash", "ring", "rl", …
    command: Literal["doctor", "communication", "parity", "determinism", "bench", "smoke", "lint", "gate"] = "doctor"
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    runs: tuple[Run, ...] = ()  # parity's measurements
    repeats: tuple[Repeats, ...] = ()  # determinism's
    growth: tuple[Growth, ...] = ()  # parity's over ranks, at several ring sizes
    rates: DeviceRates = DeviceRates()  # bench's on one device
    timings: tuple[Timing, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    adapted: tuple[AdapterVerdict, ...] = ()  # what ring-flash-attn's Hugging Face adapter was seen to do
    ring_rates: RingRates = RingRates()  # bench's over ranks
    ring_timings: tuple[RingTiming, ...] = ()
    conclusions: tuple[str, ...] = ()  # what the timings allow to say
    attempts: tuple[PlanRun, ...] = ()  # smoke's: the plan as it was given, then as it was mended
    settings: tuple[Settings, ...] = ()  # of the mended plan
    launches: tuple[LintedLaunch, ...] = ()  # the launches that were read
    stages: tuple[Stage, ...] = ()  # a gate's checks, in order
    baselined: tuple[Finding, ...] = ()  # let pass: they are in the baseline
    allowed: tuple[Finding, ...] = ()  # let pass: the policy allows them, for the reasons in `allowances`
    allowances: tuple[Allowance, ...] = ()
    communication: Communication = Communication()  # among ranks, before anything is computed over them

    def fails(self, fail_on: str) -> bool:
        """Say whether a finding is at or above `fail_on`: "error", "warning" or "never"."""
        return self.worst() in {"error": ("error",), "warning": ("error", "warning"), "never": ()}[fail_on]

    def worst(self) -> Severity | None:
        """Return the gravest severity found, or None."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in SEVERITIES if severity in found), None)
