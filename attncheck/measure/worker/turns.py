"""Turns: one worker of a run measures at a time, while the others pause, if they would disturb it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from attncheck.workers.inside.locks import acquire_lock


@contextlib.contextmanager
def hold_turn(folder: str, on_wait: Callable[[], None], shared: bool = False) -> Iterator[None]:
    """Wait until no other worker of this run holds a turn, and make the others wait during the block.

    Workers can hold a `shared` turn at the same time, but not together with one that is not shared. `on_wait` is called
    every few seconds while waiting.
    """
    with open(Path(folder) / "measuring", "ab") as stream:
        acquire_lock(stream, shared, on_wait)
        yield
