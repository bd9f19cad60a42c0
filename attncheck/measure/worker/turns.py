"""Turns: what others would disturb is measured by one worker of a run at a time, while none does anything else."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.05  # between tries for a turn
POLLS_PER_REPORT = 40  # tries between two calls of `on_wait`


@contextlib.contextmanager
def hold_turn(folder: str, on_wait: Callable[[], None], shared: bool = False) -> Iterator[None]:
    """Wait until no other worker of this run holds a turn, and keep the others waiting for the block.

    Workers hold a `shared` turn at the same time, and none beside one that is not. `on_wait` is called every few
    seconds while waiting. The lock is the operating system's: a worker that dies releases it.
    """
    with open(Path(folder) / "measuring", "ab") as stream:
        polls = 0
        while True:
            try:
                fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except OSError:
                if polls % POLLS_PER_REPORT == 0:
                    on_wait()
                polls += 1
                time.sleep(POLL_SECONDS)
        yield
