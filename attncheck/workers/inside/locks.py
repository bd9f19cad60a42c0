"""Waits for a lock of the operating system, which is released if its worker dies."""

import fcntl
import time
from collections.abc import Callable
from typing import IO

POLL_SECONDS = 0.02  # between attempts
POLLS_PER_REPORT = 100  # attempts between two calls of `on_wait`


def acquire_lock(stream: IO[bytes], shared: bool, on_wait: Callable[[], None]) -> None:
    """Lock an open file, `shared` or exclusively; call `on_wait` every few seconds meanwhile."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    polls = 0
    while True:
        try:
            fcntl.flock(stream, mode | fcntl.LOCK_NB)
            return
        except OSError:
            if polls % POLLS_PER_REPORT == 0:
                on_wait()
            polls += 1
            time.sleep(POLL_SECONDS)
