"""The differences between two environments."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attncheck.core.report import Section

SideName = Literal["A", "B"]
Relation = Literal["named", "stack", "other"]  # how a difference relates to the findings that only one side has


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison: its origin, and a short description."""

    source: str = ""  # "node-a.json", "~/env/bin/python"
    kind: str = ""  # "snapshot", "report", "lock", "environment"
    summary: str = ""  # "python 3.12.3 · torch 2.11.0+cu130 · 1 × NVIDIA H200 (9.0)"


@dataclass(frozen=True)
class OneSidedFinding:
    """A finding that only one side has; the report's findings contain it in full."""

    side: SideName
    code: str
    subject: str


@dataclass(frozen=True)
class StackDifference:
    """One fact that differs. `explains` are the codes of one-sided findings that name it."""

    kind: str  # "package", "torch", "driver", "variable", …
    subject: str
    a: str
    b: str
    relation: Relation = "other"
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiffSection(Section):
    """What `attncheck diff` compared: findings of one side, and facts that differ, the likeliest explanation first."""

    name: ClassVar[str] = "diff"
    a: ComparedSide = ComparedSide()
    b: ComparedSide = ComparedSide()
    one_sided: tuple[OneSidedFinding, ...] = ()
    differences: tuple[StackDifference, ...] = ()
    not_judged: tuple[str, ...] = ()  # what a probe could not do on either side
    lost: tuple[str, ...] = ()  # what a probe could not do on either side


SECTION = DiffSection
