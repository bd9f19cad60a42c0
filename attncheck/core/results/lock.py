"""How an environment compares with its lock."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import OpenQuestion, Section


@dataclass(frozen=True)
class Move:
    """One change since the lock. `code` is that of its finding, "" if the change does not matter."""

    subject: str  # "transformers", "driver", "flash_attn_2 gqa"
    before: str
    now: str
    code: str = ""
    reason: str = ""  # why it matters, or does not


@dataclass(frozen=True)
class LockSection(Section):
    """What `attncheck lock --check` compared, what moved, and what could not be compared."""

    name: ClassVar[str] = "lock"
    path: str = ""
    date: str = ""  # on which the lock was written
    packages: int = 0  # that were compared
    measurements: int = 0  # that were compared
    moves: tuple[Move, ...] = ()
    # Because something is missing on this side: no report, another suite, another GPU.
    not_compared: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # what a probe could not do

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """What was lost; the absence of changes there proves nothing."""
        return tuple(OpenQuestion(self.name, "unanswered", reason) for reason in self.lost)


SECTION = LockSection
