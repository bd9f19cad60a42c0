"""The effects of other package versions on an environment."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from attncheck.core.report import MeasuredOn, OpenQuestion, Section, deduplicate

# The basis of a judgement: tables and metadata; the new wheel's files; imports or runs in a temporary folder.
Basis = Literal["predicted", "read", "tried"]
StageOutcome = Literal["same", "worse", "not_run"]


@dataclass(frozen=True)
class ChangedPackage:
    """A package whose version would change; a version is "" if it is not installed or not known."""

    name: str
    before: str
    after: str
    wheel: str = ""  # the file name of the wheel that was read
    named: bool = True  # whether the command line names it; otherwise an installer would change it as well


@dataclass(frozen=True)
class UpgradeEffect:
    """A finding that only one side has; the report's findings describe in full what would break."""

    code: str
    subject: str
    message: str
    basis: Basis


@dataclass(frozen=True)
class TrialStage:
    """One part of a trial: "install", "imports", "parity", "smoke"."""

    name: str
    outcome: StageOutcome
    detail: str


@dataclass(frozen=True)
class UpgradeSection(Section):
    """What `attncheck upgrade` judged: what would change, break and be fixed, and what cannot be known beforehand."""

    name: ClassVar[str] = "upgrade"
    basis: Basis = "predicted"
    packages: tuple[ChangedPackage, ...] = ()
    breaks: tuple[UpgradeEffect, ...] = ()
    fixes: tuple[UpgradeEffect, ...] = ()
    unchanged: int = 0  # findings that both sides have
    refuted: tuple[str, ...] = ()  # predictions that the trial did not confirm
    unknown: tuple[str, ...] = ()
    stages: tuple[TrialStage, ...] = ()  # stages of --try
    lost: tuple[str, ...] = ()  # what a probe could not do on either side
    interrupted: bool = False

    @property
    def device(self) -> MeasuredOn:
        """The device records only whether the trial was interrupted; its measurements are in its findings."""
        return MeasuredOn(interrupted=self.interrupted)

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """What probes could not do, and the parts of a trial that were not run."""
        stages = (f"{stage.name}: {stage.detail}" for stage in self.stages if stage.outcome == "not_run")
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in (*self.lost, *stages))

    def merge(self, later: "UpgradeSection") -> "UpgradeSection":
        """Return two upgrades of one report as one list; each was judged separately."""
        return replace(
            self,
            basis=self.basis if self.basis == later.basis else "predicted",
            packages=deduplicate((*self.packages, *later.packages)),
            breaks=deduplicate((*self.breaks, *later.breaks)),
            fixes=deduplicate((*self.fixes, *later.fixes)),
            unchanged=max(self.unchanged, later.unchanged),
            refuted=deduplicate((*self.refuted, *later.refuted)),
            unknown=deduplicate((*self.unknown, *later.unknown)),
            stages=deduplicate((*self.stages, *later.stages)),
            lost=deduplicate((*self.lost, *later.lost)),
            interrupted=self.interrupted or later.interrupted,
        )


SECTION = UpgradeSection
