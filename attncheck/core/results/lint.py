"""What lint read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.job import LintedLaunch
from attncheck.core.report import Report, Section, deduplicate


@dataclass(frozen=True)
class LintSection(Section):
    """The launches that `attncheck lint` read, each as it is and as it was corrected."""

    name: ClassVar[str] = "lint"
    launches: tuple[LintedLaunch, ...] = ()
    needs: tuple[str, ...] = ()  # what matters to these jobs: "flash", "ring", "rl", …

    not_linted: tuple[str, ...] = ()  # sources that start no trainer that attncheck knows

    def merge(self, later: LintSection) -> LintSection:
        """Return both, as of several sources."""
        return LintSection(
            deduplicate((*self.launches, *later.launches)),
            tuple(sorted({*self.needs, *later.needs})),
            deduplicate((*self.not_linted, *later.not_linted)),
        )


SECTION = LintSection


def launches_of(report: Report) -> tuple[LintedLaunch, ...]:
    """Return the launches that a report holds; none where lint did not run."""
    section = report.section(LintSection)
    return section.launches if section is not None else ()
