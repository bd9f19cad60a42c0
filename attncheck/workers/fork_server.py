"""Workers forked from one interpreter that has imported their modules, so that these are imported once."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from attncheck.workers.forked import ForkedProcess
from attncheck.workers.process import Process

IS_SUPPORTED = sys.platform == "linux"  # elsewhere a worker would outlive a killed server


class ForkServer(Process):
    """The interpreter that forks, after its imports. If they fail it ends, and with it the workers that wait for it."""

    def __init__(self, python: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the interpreter with `arguments`. Raises `BadUsage` if it cannot be started."""
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requests:
            self._stdin = requests.fileno()
            super().__init__(python, arguments, environment)

    def fork(self) -> ForkedProcess:
        """Request a worker."""
        (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        ours, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = [stdin, stdout, stderr, status.detach()]
        with suppress(OSError):  # the server has ended: the worker's status shows it
            socket.send_fds(self._requests, [b"fork"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return ForkedProcess(self.pid, ours, (our_stdin, our_stdout, our_stderr))
