"""A deadline over work that has none of its own: it ends as Ctrl-C would end it, so that no child is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from attncheck.core import interrupts

GRACE = 5.0  # seconds beyond the deadline for work that minds it by itself, and keeps what it has then
AGAIN = 30.0  # seconds until it is said again to work that did not hear


class OutOfTime(Exception):
    """The deadline came."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` from the block after `seconds`; without a bound, and outside the main thread, never.

    The alarm sends SIGINT to ourselves: that is held back where a child is half started, and heard wherever we wait.
    """
    if seconds == float("inf") or threading.current_thread() is not threading.main_thread():
        yield
        return
    rang: list[int] = []

    def ring(number: int, frame: object) -> None:
        rang.append(number)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        if not rang:
            raise
        interrupts.forget()  # it was our own
        raise OutOfTime from None
    finally:
        signal.signal(signal.SIGALRM, before)
