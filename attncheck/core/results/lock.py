"""The comparison of an environment with its lock."""

from dataclasses import dataclass
from typing import ClassVar

from attncheck.core.report import Section


@dataclass(frozen=True)
class Move:
    """One change since the lock was written. `code` is that of its finding, "" if the change does not matter."""

    subject: str  # "transformers", "driver", "flash_attn_2 gqa"
    before: str
    now: str
    code: str = ""
    reason: str = ""  # why it matters or not


@dataclass(frozen=True)
class LockSection(Section):
    """What `attncheck lock --check` compared, what changed, and what could not be compared."""

    name: ClassVar[str] = "lock"
    path: str = ""
    date: str = ""  # when the lock was written
    packages: int = 0  # number of packages compared
    measurements: int = 0  # number of measurements compared
    moves: tuple[Move, ...] = ()
    # What this side lacks: no report, another suite, another GPU.
    not_compared: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # what a probe could not do


SECTION = LockSection
