"""A process that imports modules once and forks workers, which start with them: in milliseconds, not in seconds.

The modules are arguments. Standard input is a Unix socket. A request has four descriptors: the worker's standard input,
output and error, and a socket for its process id and, later, its exit status.
"""

import contextlib
import importlib
import os
import select
import socket
import sys
import warnings

from attncheck.workers.inside import worker

POLL_SECONDS = 0.05  # between two looks at the children
REQUEST_LIMIT = 16
# Asking the driver for devices, as torch._inductor does when it is imported, would leave all forks without one. NVML
# answers instead (torch 2.13, torch/cuda/__init__.py, `is_available` and `device_count`).
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(out: int) -> None:
    """Fork a worker for each request; its results go to the descriptor `out`. A module that fails ends this process."""
    worker.die_with_parent()
    set_by_user = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    serve(out)
    del os.environ[NVML_CHECK]
    if set_by_user is not None:
        os.environ[NVML_CHECK] = set_by_user
    worker.main(out)


def serve(out: int) -> None:
    """Fork a worker for each request, and return in the worker."""
    requests = socket.socket(fileno=os.dup(0))
    for name in sys.argv[3:]:
        importlib.import_module(name)
    children: dict[int, socket.socket] = {}
    while True:
        if select.select([requests], [], [], POLL_SECONDS)[0]:
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_LIMIT, 4)
            if not request:
                os._exit(0)
            status = socket.socket(fileno=descriptors[-1])
            if not (pid := _fork()):
                _become_worker(dict(zip(descriptors, ((0,), (out,), (1, 2)))), status)
                for stream in (requests, status, *children.values()):
                    stream.close()
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            if not pid:
                return
            children[pid] = status
        _report_ended(children)


def _fork() -> int:
    """Return the result of `os.fork`, without its warning about threads that some libraries start."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _become_worker(streams: dict[int, tuple[int, ...]], status: socket.socket) -> None:
    """Take the streams of a request under their own numbers, in our own process group, and report our process id."""
    os.setsid()
    for descriptor, numbers in streams.items():
        for number in numbers:
            os.dup2(descriptor, number)
    status.send(b"%d" % os.getpid())


def _report_ended(children: dict[int, socket.socket]) -> None:
    """Reap the children that have ended, and send their exit statuses (negative: a signal)."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as stream, contextlib.suppress(OSError):  # attncheck may wait for it no longer
            stream.send(b"%d" % os.waitstatus_to_exitcode(status))
