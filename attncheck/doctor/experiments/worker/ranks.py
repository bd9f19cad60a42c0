"""Runs a function on several ranks: forks of this process that find each other through torch's variables.

It runs in a child of the examined interpreter and knows nothing of attncheck.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LATE = "no answer in time"


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


def run_parts(parts: dict[str, Callable[[], Iterable[Any]]], folder: str, deadline: float) -> dict[str, Any]:
    """Run each part in a fork, as many at once as there are processors, and return what each measured, by field.

    Each answer has `reason`: why the part did not end, "" if it did. What it measured before is kept.
    """
    answers: dict[str, Any] = {name: {"reason": LATE, "measured": {}} for name in parts}
    running: dict[int, str] = {}
    waiting = list(parts)
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            name = waiting.pop(0)
            running[_fork_part(parts[name], f"{folder}/{name}.jsonl", deadline)] = name
        child, status = os.wait()
        if name := running.pop(child, ""):
            if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM):
                answers[name]["reason"] = f"it died (wait status {status})"
            for line in Path(folder, f"{name}.jsonl").read_text("utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line of a part that was stopped
                    field, item = json.loads(line)
                    if field == "reason":
                        answers[name]["reason"] = item
                    else:
                        answers[name]["measured"].setdefault(field, []).append(item)
    return answers


def _fork_part(part: Callable[[], Iterable[Any]], path: str, deadline: float) -> int:
    """Start a part in a fork, which writes each measurement to a line of a file."""
    with open(path, "w", encoding="utf-8") as stream:
        child = os.fork()
        if child:
            return child
        signal.alarm(max(1, int(deadline - time.monotonic())))
        reason = ""
        try:
            for answer in part():
                print(json.dumps(answer), file=stream, flush=True)
        except BaseException as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(["reason", reason]), file=stream, flush=True)
        os._exit(0)


def find_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
