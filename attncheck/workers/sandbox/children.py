"""Ends every process below this one, in any session; this process must be their init or their subreaper."""

import contextlib
import os
import signal
import time

KILL_SECONDS = 10.0


def kill_all(is_init: bool, group: int = 0) -> None:
    """Kill every descendant and wait until none is left; `is_init`: this process is the first of its PID namespace.

    `group` is the process group of the command; without /proc only this group is known.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        if is_init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            if group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            for pid in _list_descendants():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _list_descendants() -> list[int]:
    """Return the processes below this one; orphaned descendants have become its own children."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stream:
                parents[int(name)] = int(stream.read().rpartition(b")")[2].split()[1])
    family = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return sorted(family - {os.getpid()})
        family |= more
