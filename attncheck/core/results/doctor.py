"""The result of doctor's rules."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import Section, deduplicate


@dataclass(frozen=True)
class DoctorSection(Section):
    """The needs that rules judged by, and what could not be examined; the collected facts are the report's snapshot."""

    name: ClassVar[str] = "doctor"
    needs: tuple[str, ...] = ()  # what matters to the profile: "flash", "ring", "rl", …

    lost: tuple[str, ...] = ()  # what a probe could not do, and rules that crashed

    def merge(self, later: "DoctorSection") -> "DoctorSection":
        """Return the sections of several models as one."""
        return DoctorSection(tuple(sorted({*self.needs, *later.needs})), deduplicate((*self.lost, *later.lost)))


SECTION = DoctorSection
