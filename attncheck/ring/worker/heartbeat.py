"""A heartbeat between ranks under an external launcher, through the store: no parent process sees all ranks.

A rank that cannot continue writes so to the store, and rank 0 passes it on to its parent. Rank 0's heartbeat shows the
others that it still runs. If it stops they end, even while they wait for something else.
"""

import json
import os
import threading
import time
from typing import Any

from attncheck.workers.inside.mailbox import Mailbox

POLL_SECONDS = 0.5
SILENCE_SECONDS = 30.0  # rank 0 counts as dead after this long without a heartbeat
FAULT_KEY, HEARTBEAT_KEY = "fault", "beat"


def report_fault(store: Any, rank: int, message: str) -> None:
    """Write to the store that `rank` cannot continue, for rank 0 to pass on."""
    store.set(FAULT_KEY, json.dumps({"rank": rank, "message": message}))


def start_heartbeat(store: Any, rank: int, mailbox: Mailbox) -> None:
    """Start the heartbeat (rank 0), or watch it (others), in a daemon thread."""
    run = _send_heartbeat if rank == 0 else _watch_heartbeat
    threading.Thread(target=run, args=(store, mailbox), daemon=True).start()


def _send_heartbeat(store: Any, mailbox: Mailbox) -> None:
    beat = 0
    while True:
        store.set(HEARTBEAT_KEY, str(beat := beat + 1))
        if store.check([FAULT_KEY]):
            fault = json.loads(store.get(FAULT_KEY))
            mailbox.post_fault(fault["message"], fault["rank"])
            return
        time.sleep(POLL_SECONDS)


def _watch_heartbeat(store: Any, mailbox: Mailbox) -> None:
    last_beat, changed_at = b"", time.monotonic()
    while time.monotonic() - changed_at < SILENCE_SECONDS:
        try:
            beat = store.get(HEARTBEAT_KEY) if store.check([HEARTBEAT_KEY]) else b""
        except Exception:  # the store ended with rank 0
            break
        if beat != last_beat:
            last_beat, changed_at = beat, time.monotonic()
        time.sleep(POLL_SECONDS)
    os._exit(0)
