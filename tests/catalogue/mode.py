"""One failure mode: how it is presented to attncheck, which finding must name it, and how its fix was tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attncheck.core.report import Report


@dataclass(frozen=True)
class Mode:
    """A failure mode that a finding names, with a fix that works."""

    name: str  # "ring-import-symbol"
    present: Callable[[Path], Report]  # in an empty folder: a recording, files laid there, or a launch
    codes: tuple[str, ...]  # at least one of these findings names the cause
    fix: str  # words of a fix that it must offer
    tried: str  # how that fix was shown to work for this class: the test that runs it, or what was run, with versions


@dataclass(frozen=True)
class Missed:
    """A failure mode that is not named, or whose fix does not work, and why."""

    name: str
    reason: str
