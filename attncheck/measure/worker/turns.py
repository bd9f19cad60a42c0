"""Turns: of the workers of one run, only so many measure at a time what others would disturb."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.05  # between tries for a turn
POLLS_PER_REPORT = 40  # tries between two calls of `on_wait`


@contextlib.contextmanager
def hold_turn(folder: str, on_wait: Callable[[], None], places: int = 1) -> Iterator[None]:
    """Wait until fewer than `places` other workers of this run hold a turn, and hold one for the block.

    `on_wait` is called every few seconds meanwhile. The locks are the operating system's: a worker that dies releases
    its own.
    """
    with contextlib.ExitStack() as files:
        streams = [files.enter_context(open(Path(folder) / f"turn-{place}", "ab")) for place in range(places)]
        polls = 0
        while not any(_lock(stream.fileno()) for stream in streams):
            if polls % POLLS_PER_REPORT == 0:
                on_wait()
            polls += 1
            time.sleep(POLL_SECONDS)
        yield


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
