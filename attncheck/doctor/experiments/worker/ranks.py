"""Runs functions in forks of this process: parts one by one, and ranks that find each other through torch's variables.

It runs in a child of the examined interpreter and knows nothing of attncheck.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

LATE = "no answer in time"


def run_parts(parts: Mapping[str, Callable[[], Iterable[Any]]], folder: str, deadline: float) -> dict[str, Any]:
    """Run each part in a fork, as many at once as there are processors, and return what each measured, by field.

    Each answer has `reason`: why the part did not end, "" if it did. What it measured before is kept.
    """
    answers: dict[str, Any] = {}
    running: dict[int, str] = {}
    waiting = list(parts)
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            name = waiting.pop(0)
            running[_fork(parts[name], f"{folder}/{name}.jsonl", deadline)] = name
        child, status = os.wait()
        if name := running.pop(child, ""):
            items, reason = _read(f"{folder}/{name}.jsonl")
            is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            died = LATE if is_late else f"it died (wait status {status})"
            answers[name] = {"reason": died if reason is None else reason, "measured": {}}
            for field, item in items:
                answers[name]["measured"].setdefault(field, []).append(item)
    return answers


def run_ranks(ranks: int, work: Callable[[], Iterable[Any]], folder: str, deadline: float) -> list[Any]:
    """Run `work` on each rank at once, and return what rank 0 yielded. Raises `RuntimeError` if it did not end."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), "WORLD_SIZE": str(ranks)}
    paths = [f"{folder}/rank-{rank}.jsonl" for rank in range(ranks)]
    children = [
        _fork(work, path, deadline, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank, path in enumerate(paths)
    ]
    for child in children:
        os.waitpid(child, 0)
    items, reason = _read(paths[0])
    if reason != "":
        raise RuntimeError(reason or LATE)
    return items


def _fork(work: Callable[[], Iterable[Any]], path: str, deadline: float, **environment: str) -> int:
    """Start `work` in a fork of this process, which writes each answer to a line of a file."""
    with open(path, "w", encoding="utf-8") as stream:
        child = os.fork()
        if child:
            return child
        signal.alarm(max(1, int(deadline - time.monotonic())))  # it may wait for another rank for ever
        os.environ.update(environment)
        reason = ""
        try:
            for answer in work():
                print(json.dumps([answer]), file=stream, flush=True)
        except BaseException as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(reason), file=stream, flush=True)
        os._exit(0)


def _read(path: str) -> tuple[list[Any], str | None]:
    """Return the answers in a file of `_fork`, and why the work failed; None if it did not end."""
    items, reason = [], None
    for line in Path(path).read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a process that was stopped
            answer = json.loads(line)
            if isinstance(answer, str):
                reason = answer
            else:
                items += answer
    return items, reason


def find_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
