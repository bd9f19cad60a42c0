"""What doctor judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import Section


@dataclass(frozen=True)
class DoctorSection(Section):
    """The needs that `attncheck doctor` judged by; what it collected is the report's snapshot."""

    name: ClassVar[str] = "doctor"
    needs: tuple[str, ...] = ()  # what the profile holds to matter: "flash", "ring", "rl", …

    def merge(self, later: DoctorSection) -> DoctorSection:
        """Return both, as of several models."""
        return DoctorSection(tuple(sorted({*self.needs, *later.needs})))


SECTION = DoctorSection
