"""Runs programs that may hang, flood or fork, side by side, under one deadline; none of them outlives it.

A program stuck inside the kernel cannot be killed by anyone: it is sent SIGKILL and left to end when it can.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

from ..facts import failure
from . import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

OUTPUT_LIMIT = 4 << 20  # bytes; a machine of 16 GPUs says less than 1 MiB
GRACE_SECONDS = 1.0  # for a killed program to be gone
_TICK = 0.05


class Run:
    """One program at work: what it said so far, and in the end `problem`, "" where it ended by itself with 0."""

    def __init__(self, command: List[str]) -> None:
        """Start `command` in a session of its own, so that it can be killed with all that it started."""
        self.text = ""
        self.problem = ""
        self.stopped = False  # before it was done: what it said may be half of it
        self.process = None
        self._chunks: List[bytes] = []
        self._size = 0
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.problem = "it cannot be started: " + failure(error)

    def read(self) -> bool:
        """Take what is waiting in the pipe; return False where nothing more can come."""
        assert self.process is not None and self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        self._size += len(chunk)
        if self._size > OUTPUT_LIMIT:
            self.stop("it wrote more than %d MiB and was stopped" % (OUTPUT_LIMIT >> 20))
            return False
        self._chunks.append(chunk)
        return bool(chunk)

    def stop(self, problem: str) -> None:
        """Note why it is not waited for; `finish` kills it."""
        self.stopped, self.problem = True, problem

    def ended(self) -> bool:
        """Say whether the program itself has ended, without reaping it: its process group must stay ours."""
        if self.process is None or not hasattr(os, "waitid"):
            return self.process is None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.process.pid, flags) is not None
        except OSError:
            return True

    def finish(self) -> None:
        """Kill what is left of it and put its words together."""
        if self.process is None:
            return
        if not self.problem:  # its output has ended: the exit itself may be a moment behind
            _wait_for(self.ended, GRACE_SECONDS)
        forking.kill_group(self.process.pid)
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.text = b"".join(self._chunks).decode("utf-8", "replace")
        if not self.problem and code != 0:
            self.problem = "it ended with exit status %s" % code


def run_all(commands: Dict[str, List[str]], seconds: float) -> Dict[str, Run]:
    """Run `commands`, by name, at the same time; after `seconds` what still runs is killed."""
    end = time.monotonic() + seconds
    runs = {name: Run(command) for name, command in commands.items()}
    try:
        _listen([run for run in runs.values() if run.process is not None], end, seconds)
    finally:
        for run in runs.values():
            run.finish()
    return runs


def _listen(runs: List[Run], end: float, seconds: float) -> None:
    waiting = {run.process.stdout.fileno(): run for run in runs if run.process and run.process.stdout}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while waiting:
        left = end - time.monotonic()
        if left <= 0:
            break
        ready = [descriptor for descriptor, _ in poll.poll(min(left, _TICK) * 1000)]
        # A child that it left behind may hold the pipe open: then its own end counts.
        done = [descriptor for descriptor in ready if not waiting[descriptor].read()]
        if not ready:
            done = [descriptor for descriptor, run in waiting.items() if run.ended()]
        for descriptor in done:
            poll.unregister(descriptor)
            del waiting[descriptor]
    for run in waiting.values():
        run.stop("it did not answer within %g s and was stopped" % seconds)


def _wait_for(happened: object, seconds: float) -> None:
    end = time.monotonic() + seconds
    while callable(happened) and not happened() and time.monotonic() < end:
        time.sleep(0.005)


def _die_with_parent() -> None:
    forking.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
