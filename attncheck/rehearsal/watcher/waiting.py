"""Notes where a rank waits for the other ranks, if it has waited there without using its CPU for a while.

A thread looks at the main thread's frames: torch's collectives release the interpreter's lock (torch 2.13
`torch/distributed/distributed_c10d.py`). DistributedDataParallel waits in its forward, or below
`torch/autograd/graph.py` in a backward pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

POLL_SECONDS = 2.0
STILL_SECONDS = 30.0  # in one place of the program
IDLE = 0.01  # share of a CPU
COLLECTIVES = os.path.join("torch", "distributed", ""), os.path.join("torch", "nn", "parallel", "distributed.py")
TORCH = os.path.join("torch", "")
BACKWARD = "_engine_run_backward"


def install(folder: str) -> None:
    """Watch the main thread of a rank that has peers, until the process ends."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        main = threading.main_thread().ident
        threading.Thread(target=_watch, args=(folder, main), daemon=True, name="attncheck waiting").start()


def _watch(folder: str, main: int) -> None:
    """Write `waiting-RANK` while the main thread stands still in a collective."""
    place, since, used = "", time.monotonic(), time.process_time()
    while True:
        time.sleep(POLL_SECONDS)
        seconds, before, used = time.process_time() - used, place, time.process_time()
        place = find_wait(sys._current_frames().get(main)) if seconds < IDLE * POLL_SECONDS else ""
        path = os.path.join(folder, f"waiting-{os.environ.get('RANK')}")
        if not place or place != before:
            since = time.monotonic()
            with contextlib.suppress(OSError):
                os.unlink(path)
        elif time.monotonic() - since > STILL_SECONDS and not os.path.exists(path):
            with open(f"{path}.part", "w") as stream:
                json.dump([place, int(os.environ["WORLD_SIZE"])], stream)
            os.rename(f"{path}.part", path)


def find_wait(frame: Any) -> str:
    """Return the collective that a frame waits in, with the line that calls it; "" if it does not wait in one."""
    if frame is None or not (_is_collective(frame) or frame.f_code.co_name == BACKWARD):
        return ""
    name = "backward"
    while frame is not None and TORCH in frame.f_code.co_filename:
        if _is_collective(frame) and frame.f_code.co_name != "wrapper":
            name = frame.f_code.co_name
        frame = frame.f_back
    return f"{name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})" if frame is not None else name


def _is_collective(frame: Any) -> bool:
    return any(part in frame.f_code.co_filename for part in COLLECTIVES)
