"""Distinguishes a hanging process from one on a busy machine, by the processor time that it used.

Linux's /proc shows it (proc_pid_stat(5)). A process that sleeps and used no processor time does not compute, even on a
busy machine. One that is ready to run and gets little time is starved. On other systems this is unknown.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, NamedTuple

from attncheck.core.lists import group_values

ASLEEP_SHARE = 0.02  # share of the elapsed time below which a process does not compute
COMPUTING_SHARE = 0.8  # share from which it had as much time as one thread can use
WAITS_FOR_MACHINE = "RD"  # states: running or waiting for a processor; waiting for a disk

Activity = Literal["asleep", "computing", "starved", "unknown"]


class CpuSample(NamedTuple):
    """The processor time of some processes and their descendants up to a time.monotonic() value."""

    at: float
    seconds: float
    waits_for_machine: bool  # whether one of their threads runs, or waits for a processor or a disk


class CpuUse(NamedTuple):
    """The activity of some processes between two samples."""

    activity: Activity
    seconds: float = 0.0
    elapsed: float = 0.0

    def describe(self) -> str:
        """Return their activity in words, "" if unknown."""
        if self.activity == "unknown":
            return ""
        texts = {"asleep": "it slept: ", "computing": "it computed without stopping: ", "starved": ""}
        return f"{texts[self.activity]}{self.seconds:.1f} s of CPU time in its last {self.elapsed:.0f} s"


def sample_cpu(pids: Iterable[int]) -> CpuSample | None:
    """Return the processor time of processes and their descendants, None if the system does not report it."""
    stats = _read_stats()
    members = {pid for pid in pids if pid in stats}
    if not members:
        return None
    children = group_values((int(fields[1]), pid) for pid, fields in stats.items())
    queue = list(members)
    while queue:
        new_members = [pid for pid in children.get(queue.pop(), ()) if pid not in members]
        members.update(new_members)
        queue += new_members
    ticks = sum(sum(map(int, stats[pid][11:15])) for pid in members)  # its own, and that of children that ended
    waits = any(state in WAITS_FOR_MACHINE for pid in members for state in _thread_states(pid))
    return CpuSample(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), waits)


def compare_samples(first: CpuSample | None, last: CpuSample | None) -> CpuUse:
    """Return the activity between two samples of the same processes."""
    if first is None or last is None or last.at <= first.at:
        return CpuUse("unknown")
    seconds, elapsed = max(0.0, last.seconds - first.seconds), last.at - first.at
    share = seconds / elapsed
    activity: Activity = "starved"
    if share >= COMPUTING_SHARE:
        activity = "computing"
    elif share < ASLEEP_SHARE and not first.waits_for_machine and not last.waits_for_machine:
        activity = "asleep"
    return CpuUse(activity, seconds, elapsed)


def read_process_state(pid: int) -> str:
    """Return the letter of a process's state (proc_pid_stat(5)); X if it has ended, ? if /proc does not show it."""
    if not os.path.exists("/proc/self"):
        return "?"
    try:
        return _read_stat(f"/proc/{pid}/stat")[0]
    except OSError:
        return "X"


def _read_stats() -> dict[int, list[str]]:
    """Return the fields of every process's /proc/PID/stat, from its state onwards, by pid."""
    stats: dict[int, list[str]] = {}
    with suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with suppress(OSError):
                    stats[int(entry.name)] = _read_stat(f"{entry.path}/stat")
    return stats


def _thread_states(pid: int) -> list[str]:
    states: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                states.append(_read_stat(f"/proc/{pid}/task/{thread}/stat")[0])
    return states


def _read_stat(path: str) -> list[str]:
    with open(path, "rb") as stream:
        return stream.read().rpartition(b")")[2].decode("ascii", "replace").split()
