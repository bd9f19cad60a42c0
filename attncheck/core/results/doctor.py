"""What doctor judged."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import OpenQuestion, Section, deduplicate


@dataclass(frozen=True)
class DoctorSection(Section):
    """The needs that rules judged by, and what could not be looked at; what was collected is the report's snapshot."""

    name: ClassVar[str] = "doctor"
    needs: tuple[str, ...] = ()  # what the profile holds to matter: "flash", "ring", "rl", …

    lost: tuple[str, ...] = ()  # what a probe could not do, and rules that crashed

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """What was lost; the absence of findings there proves nothing."""
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in self.lost)

    def merge(self, later: "DoctorSection") -> "DoctorSection":
        """Return both, as of several models."""
        return DoctorSection(tuple(sorted({*self.needs, *later.needs})), deduplicate((*self.lost, *later.lost)))


SECTION = DoctorSection
