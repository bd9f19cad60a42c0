"""A process that was forked for us by another one, used as one that was started with `subprocess`."""

import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress

MESSAGE_LIMIT = 64


class ForkedProcess:
    """A forked worker with what `Process` uses of `subprocess.Popen`."""

    def __init__(self, server: int, status: socket.socket, streams: tuple[int, int, int]) -> None:
        """Take the socket that gets its pid and exit status, and our ends of its standard streams."""
        self._pid, self._has_started, self._status = server, False, status
        self.returncode: int | None = None
        self.stdin = os.fdopen(streams[0], "wb")
        self.stdout, self.stderr = os.fdopen(streams[1], "rb"), os.fdopen(streams[2], "rb")

    @property
    def pid(self) -> int:
        """Its process id; until it starts, the server's."""
        self.poll()
        return self._pid

    def poll(self) -> int | None:
        """Return its exit status (negative: a signal), None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
            message = self._status.recv(MESSAGE_LIMIT)
            if self._has_started or not message:
                self.returncode = int(message or -signal.SIGKILL)  # with no status, it ended with the server
                self._status.close()
            else:
                self._pid, self._has_started = int(message), True
        return self.returncode
