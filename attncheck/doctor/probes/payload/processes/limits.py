"""Runs programs that may hang, flood or fork, in parallel, under one deadline; none of them outlives it.

A program that is stuck inside the kernel cannot be killed; it gets SIGKILL and ends when it can.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

from ..facts import describe_error
from . import forking

OUTPUT_LIMIT = 4 << 20  # bytes; nvidia-smi on a machine with 16 GPUs writes less than 1 MiB
GRACE_SECONDS = 1.0  # for a killed program to end
_POLL_SECONDS = 0.05


class ProgramRun:
    """One running program: its output so far, and at the end `problem`, "" if it exited with status 0."""

    def __init__(self, command: list[str]) -> None:
        """Start `command` in its own session, so that it can be killed with all its children."""
        self.text = ""
        self.problem = ""
        self.is_partial = False  # stopped early, so its output may be cut off
        self.process = None
        self._chunks: list[bytes] = []
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
            self.problem = "it cannot be started: " + describe_error(error)

    def read_output(self) -> bool:
        """Read the available output from the pipe; return False if it has ended."""
        assert self.process is not None and self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        self._size += len(chunk)
        if self._size > OUTPUT_LIMIT:
            self.give_up("it wrote more than %d MiB and was stopped" % (OUTPUT_LIMIT >> 20))
            return False
        self._chunks.append(chunk)
        return bool(chunk)

    def give_up(self, problem: str) -> None:
        """Record why the program is no longer waited for; `finish` kills it."""
        self.is_partial, self.problem = True, problem

    def has_ended(self) -> bool:
        """Return whether the program itself has ended, without reaping it, so that its process group is not reused."""
        if self.process is None or not hasattr(os, "waitid"):
            return self.process is None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.process.pid, flags) is not None
        except OSError:
            return True

    def finish(self) -> None:
        """Kill the remaining processes and decode the output."""
        if self.process is None:
            return
        if not self.problem:  # its output has ended; its exit may follow a moment later
            _wait_until(self.has_ended, GRACE_SECONDS)
        forking.kill_process_group(self.process.pid)
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.text = b"".join(self._chunks).decode("utf-8", "replace")
        if not self.problem and code != 0:
            self.problem = "it ended with exit status %s" % code


def run_programs(commands: dict[str, list[str]], seconds: float) -> dict[str, ProgramRun]:
    """Run `commands`, by name, in parallel; after `seconds`, kill all remaining processes, including daemons."""
    end_time = time.monotonic() + seconds
    with forking.adopting_orphans():
        runs = {name: ProgramRun(command) for name, command in commands.items()}
        try:
            _read_outputs([run for run in runs.values() if run.process is not None], end_time, seconds)
        finally:
            for run in runs.values():
                run.finish()
    return runs


def _read_outputs(runs: list[ProgramRun], end_time: float, seconds: float) -> None:
    open_runs = {run.process.stdout.fileno(): run for run in runs if run.process and run.process.stdout}
    poll = select.poll()
    for descriptor in open_runs:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while open_runs:
        remaining = end_time - time.monotonic()
        if remaining <= 0:
            break
        ready = [descriptor for descriptor, _ in poll.poll(min(remaining, _POLL_SECONDS) * 1000)]
        # A child that it left behind may keep the pipe open, so the program's own end counts.
        done = [descriptor for descriptor in ready if not open_runs[descriptor].read_output()]
        if not ready:
            done = [descriptor for descriptor, run in open_runs.items() if run.has_ended()]
        for descriptor in done:
            poll.unregister(descriptor)
            del open_runs[descriptor]
    for run in open_runs.values():
        run.give_up("it did not answer within %g s and was stopped" % seconds)


def _wait_until(condition: object, seconds: float) -> None:
    end_time = time.monotonic() + seconds
    while callable(condition) and not condition() and time.monotonic() < end_time:
        time.sleep(0.005)


def _die_with_parent() -> None:
    forking.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
