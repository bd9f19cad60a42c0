"""Ends a process of a rehearsed launch when the sandbox's supervisor has ended, if there is no PID namespace.

A thread waits for the supervisor. The kernel's parent-death signal is not suitable: it is also sent when the thread
that started the process ends (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import select
import signal
import threading


def install() -> None:
    """Watch the supervisor in the environment, in this process and in its forks; do nothing without one."""
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
