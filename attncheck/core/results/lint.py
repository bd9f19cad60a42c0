"""The launches that lint read."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from attncheck.core.job import LintedLaunch
from attncheck.core.launch import SourceLocation
from attncheck.core.report import Report, Section

MEASURED = ("the batch's keys", "the gradients' size")  # questions that only a measurement answers
LABELS = "the labels"  # which tokens are learned: one step of the launch answers


@dataclass(frozen=True)
class LintSection(Section):
    """The launches that `attncheck lint` read, each as written and as corrected."""

    name: ClassVar[str] = "lint"
    launches: tuple[LintedLaunch, ...] = ()
    needs: tuple[str, ...] = ()  # what matters to these jobs: "flash", "ring", "rl", …

    not_linted: tuple[str, ...] = ()  # sources that start no trainer that attncheck knows
    from_folders: bool = False  # whether folders were searched
    without_launch: int = 0  # number of files in folders that start no trainer that attncheck knows
    not_read: tuple[str, ...] = ()  # files in folders that were not read, with the reason
    lost: tuple[str, ...] = ()  # named files that were not read, with the reason

    def with_labels(self, locations: Container[str]) -> "LintSection":
        """Return the section with the labels of the launches at these locations checked."""
        return replace(
            self,
            launches=tuple(
                replace(launch, unchecked=tuple(item for item in launch.unchecked if item != LABELS))
                if str(launch.job.location) in locations
                else launch
                for launch in self.launches
            ),
        )

    @cached_property
    def locations(self) -> frozenset[SourceLocation]:
        """Return the locations from which the settings of the jobs were read."""
        return frozenset(setting.location for launch in self.launches for setting in launch.job.settings)

    def merge(self, later: "LintSection") -> "LintSection":
        """Return the sections of several sources as one."""
        return LintSection(
            _deduplicate_launches((*self.launches, *later.launches)),
            tuple(sorted({*self.needs, *later.needs})),
            tuple(dict.fromkeys((*self.not_linted, *later.not_linted))),
            self.from_folders or later.from_folders,
            self.without_launch + later.without_launch,
            tuple(dict.fromkeys((*self.not_read, *later.not_read))),
            tuple(dict.fromkeys((*self.lost, *later.lost))),
        )


def _deduplicate_launches(launches: Iterable[LintedLaunch]) -> tuple[LintedLaunch, ...]:
    """Return the distinct launches in order; to save time, only those at one location are compared."""
    by_place: dict[SourceLocation, list[LintedLaunch]] = {}
    kept = []
    for launch in launches:
        others = by_place.setdefault(launch.job.location, [])
        if launch not in others:
            others.append(launch)
            kept.append(launch)
    return tuple(kept)


SECTION = LintSection


def launches_of(report: Report) -> tuple[LintedLaunch, ...]:
    """Return the launches in a report; none if lint did not run."""
    section = report.section(LintSection)
    return section.launches if section is not None else ()
