"""One repair for a whole report: commands that do not contradict each other, and what shows that they fix it."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import Section, deduplicate


@dataclass(frozen=True)
class RepairStep:
    """One line to paste, the codes of the findings that it is for, and what it does in a few words."""

    command: str
    title: str
    codes: tuple[str, ...]
    installs: tuple[str, ...] = ()  # the requirements of an install command


@dataclass(frozen=True)
class RepairSection(Section):
    """The commands that together fix the findings of a report, in the order in which they are run.

    `proven`: codes whose rules, run again on the environment as it would be, find nothing more. `unproven`: codes that
    only an import or a run can judge. `remaining`: codes that the rules still find, or find again.
    """

    name: ClassVar[str] = "repair"
    steps: tuple[RepairStep, ...] = ()
    targets: tuple[str, ...] = ()  # codes of the findings that the commands are for
    by_hand: tuple[str, ...] = ()  # codes whose fix is an edit, a setting or a machine: it is at the finding
    conflicts: tuple[str, ...] = ()  # findings whose fixes exclude each other, and which one was taken
    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    resolution: str = ""  # what an installer's dry run said
    trial: str = ""  # what the import of the packages showed, in a temporary folder

    def merge(self, later: "RepairSection") -> "RepairSection":
        """Return both, each line once."""
        texts = {
            name: deduplicate((*getattr(self, name), *getattr(later, name)))
            for name in ("steps", "targets", "by_hand", "conflicts", "proven", "unproven", "remaining")
        }
        return RepairSection(**texts, resolution=later.resolution or self.resolution, trial=later.trial or self.trial)


SECTION = RepairSection
