"""One thing that moved, with the problem that it is, if it is one."""

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
    """A move, and the problem that its code names; None if it matters to nothing."""

    move: Move
    problem: Problem | None = None


def harmless(subject: str, before: str, now: str, reason: str) -> JudgedMove:
    """Return a move that matters to nothing, and why."""
    return JudgedMove(Move(subject, before, now, "", reason))


def harmful(code: str, move: Move, problem: Problem) -> JudgedMove:
    """Return a move that is a finding of the rule `code`."""
    return JudgedMove(Move(move.subject, move.before, move.now, code, move.reason), problem)
