"""The result of a launch's rehearsal.

It says how the launch was scaled down, what ran, and how its first step compares with the reference.
"""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.rehearsal import Isolation
from attncheck.core.report import MeasuredOn, MeasuredSection, OpenQuestion, Outcome, Verdict
from attncheck.core.results.smoke import CheckResult

# Checks of whether packed documents attend to each other; a fix is tried on them.
CACHE_IS_ON = "the cache is on, and transformers then does not separate packed documents"

DIVISOR = "divisor of the loss"  # the dimension of a script's loss that does not take the number of items
CLASS = "class of the model"  # the dimension of a launch whose model is not known, and that a stand-in replaces


@dataclass(frozen=True)
class Difference:
    """A dimension in which the job that ran differs from the launch: questions that depend on it are not answered."""

    dimension: str  # "model class", "attn_implementation", "max_length", …
    written: str
    ran: str

    @property
    def text(self) -> str:
        """The difference in words."""
        return f"it depends on the {self.dimension}, which is {self.written} in the launch and {self.ran} here"


@dataclass(frozen=True)
class RehearsedLaunch:
    """A launch that was scaled down and run once: as the user wrote it, or with the changes in `tried`."""

    location: str  # where the launch is: "run.sh:3:1"
    framework: str
    version: str
    trainer: str
    model: str  # the model whose architecture was trained
    objective: str  # the loss as the framework documents it, and where
    command: str  # the command that was run
    diff: str  # how it was scaled down
    results: tuple[CheckResult, ...]
    seconds: float = 0.0
    ranks: int = 1
    steps: int = 0
    tried: str = ""  # what fixes it: settings in the framework's words, or the user's own code
    remarks: tuple[str, ...] = ()
    full_model: bool = False  # the model was the user's own, whole
    real_data: bool = False  # the rows were the user's own
    isolation: Isolation = Isolation()
    differences: tuple[Difference, ...] = ()
    unasked: tuple[str, ...] = ()  # what the launch does, or may do, and a rehearsal of its first steps leaves out

    @property
    def why_unjudged(self) -> str:
        """Why no question about its training has an answer, "" if one has."""
        if not self.steps:
            return "no step was taken, so nothing was checked"
        judged = [result for result in self.results if result.check != "run"]
        is_empty = judged and all(result.outcome == "skipped" for result in judged)
        return f"nothing was judged: {judged[0].reason}" if is_empty else ""


@dataclass(frozen=True)
class RehearsalSection(MeasuredSection):
    """The launches that `attncheck smoke LAUNCH` ran: each as written, and then as fixed."""

    name: ClassVar[str] = "rehearsal"
    measured_on: MeasuredOn = MeasuredOn()
    verdicts: tuple[Verdict, ...] = ()
    launches: tuple[RehearsedLaunch, ...] = ()
    corrected: tuple[str, ...] = ()  # the launch that trains right: a diff, and the command to paste if there is one

    @property
    def measurements(self) -> tuple[tuple[Outcome, str], ...]:
        """The outcome of each check."""
        return tuple((result.outcome, result.reason) for launch in self.launches for result in launch.results)

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The open questions of `MeasuredSection`, and each launch as written of which nothing was judged."""
        reasons = [
            f"{launch.location}: {why}" for launch in self.launches if not launch.tried and (why := launch.why_unjudged)
        ]
        return (*super().unanswered, *(OpenQuestion(self.name, "unanswered", reason) for reason in reasons))


SECTION = RehearsalSection
