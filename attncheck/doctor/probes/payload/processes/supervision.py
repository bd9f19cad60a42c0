"""Runs a supervisor and its jobs in a separate process, and waits for the jobs' records."""

from __future__ import annotations

import os
import signal
import time

from ..facts import describe_error
from . import forking
from .supervisor import GRACE_SECONDS, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from .forking import Message
    from .job import Job

FAILURE = "failure"  # the key that, in place of the records, says why there are none


def run_jobs(jobs: list[Job], deadline: float) -> dict[str, Message]:
    """Return the records of `jobs` by name, after about `deadline` seconds at most; no process remains.

    Raises `OSError` if no process can be forked.
    """
    records_reader, records_writer = os.pipe()
    lifeline_reader, lifeline_writer = os.pipe()  # the supervisor reads end-of-file when this process dies
    inherited = forking.list_open_descriptors() - {records_writer, lifeline_reader}
    pid = forking.fork()
    if pid == 0:
        _run_supervisor(jobs, deadline, records_writer, lifeline_reader, inherited)
    forking.close_descriptors((records_writer, lifeline_reader))
    try:
        return _wait_for_records(records_reader, deadline + GRACE_SECONDS + 5.0)
    finally:
        forking.close_descriptors((records_reader, lifeline_writer))
        _end_supervisor(pid)


def _wait_for_records(descriptor: int, seconds: float) -> dict[str, Message]:
    end_time = time.monotonic() + seconds
    decoder = forking.MessageDecoder()
    while True:
        remaining = end_time - time.monotonic()
        if remaining <= 0 or not forking.is_readable(descriptor, remaining):
            raise OSError("the import server did not answer")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            raise OSError("the import server died")
        for message in decoder.feed(chunk):
            if FAILURE in message:
                raise OSError(str(message[FAILURE]))
            return message


def _end_supervisor(pid: int) -> None:
    """Wait for the supervisor, which ends when the lifeline is closed; kill it if it does not."""
    end_time = time.monotonic() + 3.0
    while time.monotonic() < end_time:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.002)
    forking.kill_process_group(pid)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _run_supervisor(
    jobs: list[Job], deadline: float, records_writer: int, lifeline_reader: int, inherited: Iterable[int]
) -> None:
    """Run the supervisor in the process that was just forked for it; never returns."""
    status = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL if signal_number == signal.SIGCHLD else signal.SIG_IGN)
        forking.close_descriptors(inherited)
        forking.replace_standard_streams()
        forking.adopt_orphans()
        supervisor = Supervisor(jobs, deadline, lifeline_reader, records_writer)
        try:
            records = supervisor.run()
        finally:
            supervisor.stop()
        if records:
            forking.make_sender(records_writer)(records)
        status = 0
    except Exception as error:
        forking.make_sender(records_writer)({FAILURE: "no imports could be run: " + describe_error(error)})
    finally:
        os._exit(status)
