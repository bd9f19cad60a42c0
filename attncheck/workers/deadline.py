"""A deadline for work that has none: it interrupts the work like Ctrl-C, so that no child is left behind."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from attncheck.core.io import interrupts
from attncheck.core.report import InterruptedRun, Report

GRACE_SECONDS = 5.0  # beyond the deadline, for work that keeps to it on its own and returns what it has by then
RESEND_SECONDS = 30.0  # until SIGINT is sent again to work that did not end


class OutOfTime(Exception):
    """The deadline passed; `reports` holds what was measured by then."""

    def __init__(self, reports: tuple[Report, ...] = ()) -> None:
        super().__init__()
        self.reports = reports


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` from the block after `seconds`; without a bound, and outside the main thread, never.

    The alarm sends SIGINT to this process: it is held back while a child is being started, and ends every wait.
    """
    if seconds == float("inf") or threading.current_thread() is not threading.main_thread():
        yield
        return
    alarms: list[int] = []

    def send_interrupt(number: int, frame: object) -> None:
        alarms.append(number)
        os.kill(os.getpid(), signal.SIGINT)

    previous_handler = signal.signal(signal.SIGALRM, send_interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), RESEND_SECONDS)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as interrupt:
        if not alarms:
            raise
        interrupts.forget_interrupt()  # it was our own
        raise OutOfTime((interrupt.report,) if isinstance(interrupt, InterruptedRun) else ()) from None
    finally:
        signal.signal(signal.SIGALRM, previous_handler)
