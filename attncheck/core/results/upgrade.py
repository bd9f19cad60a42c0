"""What other versions of packages would do to an environment."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from attncheck.core.report import MeasuredOn, OpenQuestion, Section, deduplicate

# The basis: tables and metadata; the new wheel's files; imports or runs in a temporary folder.
Basis = Literal["predicted", "read", "tried"]
StageOutcome = Literal["same", "worse", "not_run"]


@dataclass(frozen=True)
class ChangedPackage:
    """A package that would have another version. The versions are "" if there is none, or none is known."""

    name: str
    before: str
    after: str
    wheel: str = ""  # the file's name, where a wheel was read
    named: bool = True  # on the command line; else an installer would move it along


@dataclass(frozen=True)
class UpgradeEffect:
    """A finding that only one side has; the report's findings hold in full what would break."""

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
    """What `attncheck upgrade` judged: what would move, break and be fixed, and what no one can know beforehand."""

    name: ClassVar[str] = "upgrade"
    basis: Basis = "predicted"
    packages: tuple[ChangedPackage, ...] = ()
    breaks: tuple[UpgradeEffect, ...] = ()
    fixes: tuple[UpgradeEffect, ...] = ()
    unchanged: int = 0  # findings that both sides have
    refuted: tuple[str, ...] = ()  # predicted, and the trial did not show it
    unknown: tuple[str, ...] = ()
    stages: tuple[TrialStage, ...] = ()  # of --try
    lost: tuple[str, ...] = ()  # what a probe could not do on either side
    interrupted: bool = False

    @property
    def device(self) -> MeasuredOn:
        """Nothing but whether the trial was interrupted: what it measured is in its findings."""
        return MeasuredOn(interrupted=self.interrupted)

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """What was lost, and the parts of a trial that were not run."""
        stages = (f"{stage.name}: {stage.detail}" for stage in self.stages if stage.outcome == "not_run")
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in (*self.lost, *stages))

    def merge(self, later: "UpgradeSection") -> "UpgradeSection":
        """Return two upgrades of one report, each judged separately, as one list of judged items."""
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
