"""One change, with its problem, if it is one."""

from dataclasses import dataclass

from attncheck.core.findings import Problem
from attncheck.core.results.lock import Move

PACKAGE_MISSING = "ATN911"
STACK_MOVED = "ATN912"
STACK_MOVED_UNMEASURED = "ATN913"
ERROR_GREW = "ATN914"
BACKEND_GONE = "ATN915"
SPEED_LOST = "ATN916"
BITS_VARY = "ATN917"
GPU_CHANGED = "ATN918"
DRIVER_OLDER = "ATN919"
MEASURED_CODES = (ERROR_GREW, BACKEND_GONE, SPEED_LOST, BITS_VARY)


@dataclass(frozen=True)
class JudgedMove:
    """A change and its code's problem; None if it is harmless."""

    move: Move
    problem: Problem | None = None


def harmless(subject: str, before: str, now: str, reason: str) -> JudgedMove:
    """Return a harmless change, with the reason."""
    return JudgedMove(Move(subject, before, now, "", reason))


def harmful(code: str, move: Move, problem: Problem) -> JudgedMove:
    """Return a change that is a finding of the rule `code`."""
    return JudgedMove(Move(move.subject, move.before, move.now, code, move.reason), problem)
