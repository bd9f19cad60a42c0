"""What attncheck says: findings with evidence and fixes, explained skips, and the report that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attncheck.core.job import Linted
from attncheck.core.launch import Place
from attncheck.core.results.collectives import Communication
from attncheck.core.results.error_growth import Growth
from attncheck.core.results.gate import Allowance, Stage
from attncheck.core.results.hf_adapter import Row
from attncheck.core.results.ring_timings import RingRates, RingTiming
from attncheck.core.results.smoke import Attempt
from attncheck.core.results.timings import DeviceRates, Recommendation, Timing
from attncheck.core.results.verdicts import BackendState, MeasuredOn, Repeats, Run, Verdict
from attncheck.core.snapshot import Snapshot

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Fix:
    """One way out, ready to paste.

    `kind` says what it changes: "command" runs in a shell, "env" sets an environment variable, "setting" is a
    framework flag or keyword, "edit" is a change of a file, "manual" cannot be pasted (a driver, a machine).
    `safety` is "safe" where nothing else in the environment can move, "unsafe" where other packages may.
    `proven` is the measurement that showed it to work, where one was made. `sets` are the settings of a launch that
    it changes, by `jobs.Key`: the framework's own words for them are then the `text`.
    """

    title: str
    kind: Literal["command", "env", "setting", "edit", "manual"]
    text: str
    safety: Literal["safe", "unsafe"] = "safe"
    proven: str = ""
    sets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """What a rule yields: the defect in one line, what was observed, and how to mend it.

    `predicted` marks a defect inferred from versions, or whose source is weak: the engine then reports it one step
    milder (an error as a warning), because nothing on this machine has shown it.
    """

    message: str
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    subject: str = ""  # what it is about: "flash-attn 2.8.3", "cuda:0", "gemma2"
    predicted: bool = False
    places: tuple[Place, ...] = ()  # where in what the user wrote it comes from


@dataclass(frozen=True)
class Finding:
    """A problem stamped with its rule's code, name and severity."""

    code: str
    name: str
    severity: Severity
    message: str
    subject: str
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Skip:
    """A rule that could not answer, and why."""

    code: str
    name: str
    reason: str


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
    asked: Literal["doctor", "communication", "parity", "determinism", "bench", "smoke", "lint", "gate"] = "doctor"
    measured_on: MeasuredOn = MeasuredOn()
    backends: tuple[BackendState, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    runs: tuple[Run, ...] = ()  # parity's measurements
    repeats: tuple[Repeats, ...] = ()  # determinism's
    growth: tuple[Growth, ...] = ()  # parity's over ranks, at several ring sizes
    rates: DeviceRates = DeviceRates()  # bench's on one device
    timings: tuple[Timing, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    adapted: tuple[Row, ...] = ()  # what ring-flash-attn's Hugging Face adapter was seen to do
    ring_rates: RingRates = RingRates()  # bench's over ranks
    ring_timings: tuple[RingTiming, ...] = ()
    concluded: tuple[str, ...] = ()  # what the timings allow to say
    attempts: tuple[Attempt, ...] = ()  # smoke's: the plan as it was given, then as it was mended
    settings: tuple[Settings, ...] = ()  # of the mended plan
    linted: tuple[Linted, ...] = ()  # the launches that were read
    stages: tuple[Stage, ...] = ()  # a gate's checks, in order
    known: tuple[Finding, ...] = ()  # let pass: they are in the baseline
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
