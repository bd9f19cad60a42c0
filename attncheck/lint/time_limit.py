"""Limits the CPU time spent on one file, so that no file delays the others in a folder.

A busy machine delays every file, so elapsed time shows nothing about one.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeLimit(BaseException):
    """A file took longer than its limit; not an `Exception`, so that no handler below catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` in the body after `seconds` of CPU time; never if signals are not available, as in a thread."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimit

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
