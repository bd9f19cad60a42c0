"""Ends a process of a rehearsed launch when the sandbox's supervisor no longer exists, if there is no PID namespace.

A thread waits for the supervisor. The kernel's parent-death signal would also come when a thread of the parent ends
that started the process (prctl(2), PR_SET_PDEATHSIG), so it cannot be used for processes of others.
"""

from __future__ import annotations

import os
import select
import signal
import threading


def install() -> None:
    """Watch the supervisor that the environment names, in this process and in its forks; do nothing without one."""
    if not os.environ.get("ATTNCHECK_SUPERVISOR") or not hasattr(os, "pidfd_open"):
        return
    _start()
    os.register_at_fork(after_in_child=_start)


def _start() -> None:
    try:
        supervisor = os.pidfd_open(int(os.environ["ATTNCHECK_SUPERVISOR"]))
    except (OSError, ValueError, KeyError):
        return
    threading.Thread(target=_wait, args=(supervisor,), daemon=True, name="attncheck lifeline").start()


def _wait(supervisor: int) -> None:
    select.select([supervisor], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
