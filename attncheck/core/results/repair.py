"""One repair for a whole report: commands that do not contradict each other, and what shows that they fix it."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import Section

PROOF = "rules run again on the repaired environment no longer report"


@dataclass(frozen=True)
class RepairStep:
    """One line to paste, the codes of the findings that it fixes, and its effect in a few words."""

    command: str
    title: str
    codes: tuple[str, ...]
    installs: tuple[str, ...] = ()  # the requirements of an install command


@dataclass(frozen=True)
class RepairSection(Section):
    """The commands that together fix the findings of a report, in running order.

    `proven` are codes whose rules, evaluated on the environment as it would be, report nothing more. `unproven` are
    codes that only an import or a run can judge. `remaining` are codes that the rules still report, or report again.
    """

    name: ClassVar[str] = "repair"
    steps: tuple[RepairStep, ...] = ()
    targets: tuple[str, ...] = ()  # codes of the findings that the commands fix
    by_hand: tuple[str, ...] = ()  # codes whose fix is an edit, a setting or a machine; the finding shows it
    conflicts: tuple[str, ...] = ()  # findings whose fixes exclude each other, and which fix was chosen
    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    resolution: str = ""  # the output of an installer's dry run
    trial: str = ""  # the result of importing the packages from a temporary folder


SECTION = RepairSection
