"""Runs a function on several ranks: forks of this process that find each other through torch's variables.

It runs in a child of the examined interpreter and knows nothing of attncheck.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any


def fork_ranks(ranks: int, work: Callable[[], Any], seconds: int) -> Callable[[], Any]:
    """Start `work` on each rank, for at most `seconds`, and return what waits for rank 0's answer; [] without one."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), "WORLD_SIZE": str(ranks)}
    reads = [fork(work, seconds, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(ranks)]

    def read_all() -> Any:
        answer, *_ = [read() for read in reads]
        return answer

    return read_all


def fork(work: Callable[[], Any], seconds: int, **environment: str) -> Callable[[], Any]:
    """Start `work` in a fork of this process, for at most `seconds`, and return what waits for its answer, or []."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(seconds)  # ends a rank that waits for another
        os.environ.update(environment)
        try:
            answer = json.dumps(work()).encode()
            with os.fdopen(writer, "wb") as stream:
                stream.write(answer)
        finally:
            os._exit(0)
    os.close(writer)

    def read() -> Any:
        with os.fdopen(reader, "rb") as stream:
            answer = stream.read()
        os.waitpid(child, 0)
        return json.loads(answer or b"[]")

    return read


def find_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
