"""Ranks under a launcher outside watch each other through the store, for nobody sees all of them from outside.

A rank that cannot go on says so there, and the first rank passes it on; the first rank's beat tells the others that it
still works: when that stops they end, whatever they wait for.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from attncheck.workers.inside.mailbox import Board

TICK = 0.5  # seconds between looks
SILENCE = 30.0  # seconds without a beat after which the first rank is gone
FAULT, BEAT = "fault", "beat"


def tell(store: Any, rank: int, message: str) -> None:
    """Say to all ranks that `rank` cannot go on."""
    store.set(FAULT, json.dumps({"rank": rank, "message": message}))


def watch(store: Any, rank: int, board: Board) -> None:
    """Start watching, in a thread that ends with us."""
    threading.Thread(target=_lead if rank == 0 else _follow, args=(store, board), daemon=True).start()


def _lead(store: Any, board: Board) -> None:
    beat = 0
    while True:
        store.set(BEAT, str(beat := beat + 1))
        if store.check([FAULT]):
            found = json.loads(store.get(FAULT))
            board.fault(found["message"], found["rank"])
            return
        time.sleep(TICK)


def _follow(store: Any, board: Board) -> None:
    heard, since = b"", time.monotonic()
    while time.monotonic() - since < SILENCE:
        try:
            now = store.get(BEAT) if store.check([BEAT]) else b""
        except Exception:  # the store went with the first rank
            break
        if now != heard:
            heard, since = now, time.monotonic()
        time.sleep(TICK)
    os._exit(0)
