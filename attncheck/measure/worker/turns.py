"""Turns: what others would disturb is measured by one worker of a run at a time, while none does anything else."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from attncheck.workers.inside.locks import acquire_lock


@contextlib.contextmanager
def hold_turn(folder: str, on_wait: Callable[[], None], shared: bool = False) -> Iterator[None]:
    """Wait until no other worker of this run holds a turn, and keep the others waiting for the block.

    Workers hold a `shared` turn at the same time, and none alongside one that is not. `on_wait` is called every few
    seconds while waiting.
    """
    with open(Path(folder) / "measuring", "ab") as stream:
        acquire_lock(stream, shared, on_wait)
        yield
