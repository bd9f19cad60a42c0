"""Runs a keeper and its jobs in a process of their own, and waits for what they found."""

from __future__ import annotations

import os
import signal
import time

from . import forking
from .supervisor import GRACE, Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List

    from .forking import Message
    from .job import Job


def run(jobs: List[Job], deadline: float) -> Dict[str, Message]:
    """Return the records of `jobs` by name, after about `deadline` seconds at most; nothing they started is left.

    Raises `OSError` where no process can be forked.
    """
    here, there = os.pipe()
    alive, life = os.pipe()  # the keeper reads end-of-file when this process dies
    inherited = forking.open_descriptors() - {there, alive}
    pid = forking.fork()
    if pid == 0:
        _keep(jobs, deadline, there, alive, inherited)
    forking.close_all((there, alive))
    try:
        return _wait(here, deadline + GRACE + 5.0)
    finally:
        forking.close_all((here, life))
        _end_keeper(pid)


def _wait(descriptor: int, seconds: float) -> Dict[str, Message]:
    end = time.monotonic() + seconds
    inbox = forking.Inbox()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not forking.readable(descriptor, left):
            raise OSError("the process that keeps the imports did not answer")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            raise OSError("the process that keeps the imports died")
        for message in inbox.feed(chunk):
            return message


def _end_keeper(pid: int) -> None:
    """Wait for the keeper, which ends when `life` is closed; kill it where it does not."""
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.002)
    forking.kill_group(pid)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _keep(jobs: List[Job], deadline: float, out: int, alive: int, inherited: Iterable[int]) -> None:
    """Be the keeper; never returns."""
    status = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        forking.close_all(inherited)
        forking.own_streams()
        forking.adopt_orphans()
        keeper = Keeper(jobs, deadline, alive, out)
        try:
            records = keeper.run()
        finally:
            keeper.stop()
        if records:
            forking.sender(out)(records)
        status = 0
    finally:
        os._exit(status)
