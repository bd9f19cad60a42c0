"""A deadline for work without one: it interrupts the work like Ctrl-C, so that no child is left running."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from attncheck.core.io import interrupts
from attncheck.core.report import InterruptedRun, Report

GRACE_SECONDS = 5.0  # extra time for work that keeps the deadline itself and returns its partial results
RESEND_SECONDS = 30.0  # before SIGINT is sent again to work that has not ended


class OutOfTime(Exception):
    """The deadline passed; `reports` holds the results so far."""

    def __init__(self, reports: tuple[Report, ...] = ()) -> None:
        super().__init__()
        self.reports = reports


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` from the block after `seconds`; never without a limit, or outside the main thread.

    The alarm sends SIGINT to this process: it is delayed while a child is being started, and ends every wait.
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
        interrupts.forget_interrupt()  # the alarm sent it
        raise OutOfTime((interrupt.report,) if isinstance(interrupt, InterruptedRun) else ()) from None
    finally:
        signal.signal(signal.SIGALRM, previous_handler)
