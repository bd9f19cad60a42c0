"""A job for a forked child, and the code that runs it there."""

from __future__ import annotations

import os
import time

from ..facts import describe_error
from . import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable

    from .forking import Message, Send

POLL_SECONDS = 0.02  # between two checks for children that have ended


class Job:
    """One job for a child: `work(send)` sends its answers; for a fork server it returns whether the server is ready."""

    def __init__(
        self,
        name: str,
        work: Callable[[Send], bool],
        parent: str = "",
        is_fork_server: bool = False,
        deadline_share: float = 0.5,
        vital: bool = False,
        unfit_reason: Callable[[], str] | None = None,
    ) -> None:
        """Describe a job.

        `deadline_share` is the part of the deadline that it may use. If a `vital` parent fails, its dependants are
        skipped. `unfit_reason` returns why a fork server cannot be forked, "" if it can.
        """
        self.name, self.work, self.parent, self.is_fork_server = name, work, parent, is_fork_server
        self.deadline_share, self.vital, self.unfit_reason = deadline_share, vital, unfit_reason
        self.state = "waiting"  # then "running", "serving" (a fork server that is ready), "finished"
        # "done", "died", "hung", "skipped" (a prerequisite failed) or "lost" (no process or time was available)
        self.ending = ""
        self.skip_reason = ""
        self.answers: list[Message] = []
        self.stderr = b""
        self.status = 0
        self.pid = 0
        self.started_at = self.stop_at = self.stopped_at = self.allowed_seconds = 0.0
        self.forked_from: Job | None = None  # the fork server that is its parent; None: the supervisor
        self.retried = False
        self.first_record: Message | None = None  # the record of the first try
        self.pipes: forking.Pipes | None = None
        self.decoder = forking.MessageDecoder()
        self.dump_requested = self.is_unfit = False

    def to_record(self) -> Message:
        """Return how the job ended, as plain data."""
        return {
            "end": self.ending,
            "why": self.skip_reason,
            "answers": self.answers,
            "errors": self.stderr.decode("utf-8", "replace"),
            "status": self.status,
            "seconds": round(max(0.0, self.stopped_at - self.started_at), 3) if self.started_at else 0.0,
        }


def restore_first_try(job: Job) -> None:
    """Use the record of the first, longer try if the second one ran out of time."""
    first_record: Any = job.first_record
    job.ending, job.skip_reason, job.answers, job.status = "hung", "", first_record["answers"], first_record["status"]
    job.stderr = first_record["errors"].encode("utf-8", "replace")
    job.started_at, job.stopped_at = 0.001, 0.001 + first_record["seconds"]


def describe_failure(job: Job) -> str:
    """Return a short text on how a job failed that others depend on."""
    for answer in job.answers:
        if "failed" in answer:
            return str(answer["failed"])
    return {"died": "died on import", "hung": "hung on import"}.get(job.ending, "could not be imported")


def is_fork_failure(job: Job) -> bool:
    """Return whether `job` failed in a way that is specific to forked processes, in which CUDA cannot restart."""
    text = " ".join(str(answer) for answer in job.answers if "failed" in answer).lower()
    return job.forked_from is not None and ("fork" in text or "cuda error: initialization error" in text)


def run_job(job: Job, parent: int, jobs: dict[str, Job], unneeded: Iterable[int]) -> None:
    """Run `job` in the process that was just forked for it; never returns."""
    status = 70
    try:
        assert job.pipes is not None
        forking.set_up_child(parent, job.pipes, unneeded)
        send = forking.make_sender(job.pipes.answers[1])
        send({"pid": os.getpid()})
        forking.enable_crash_dumps(job.pipes.stderr[1])
        if not job.is_fork_server:
            _lower_priority()
        if job.work(send) and job.is_fork_server:
            send({"ready": job.unfit_reason() if job.unfit_reason is not None else ""})
            _serve_forks(job, jobs, send)
        send({"done": True})
        while os.getppid() == parent:  # the supervisor kills this process and everything that the import has started
            time.sleep(0.2)
        status = 0
    finally:
        os._exit(status)


def _lower_priority() -> None:
    try:
        os.nice(3)  # fork servers, which others wait for, get priority
    except OSError:
        return


def _serve_forks(fork_server: Job, jobs: dict[str, Job], send: Send) -> None:
    """Fork the jobs that the supervisor names and report how they end, while the parent lives."""
    assert fork_server.pipes is not None
    commands, decoder = fork_server.pipes.commands[0], forking.MessageDecoder()
    parent, own_pid = os.getppid(), os.getpid()
    names: dict[int, str] = {}
    while os.getppid() == parent:
        if forking.is_readable(commands, POLL_SECONDS if names else 0.5):
            for message in decoder.feed(os.read(commands, 1 << 16)):
                job = jobs[message["fork"]]
                try:
                    pid = forking.fork()
                except OSError as error:
                    send({"ended": job.name, "why": "no process could be started: " + describe_error(error)})
                    continue
                if pid == 0:
                    run_job(job, own_pid, jobs, ())
                names[pid] = job.name
        reaped = forking.reap_child()
        while reaped is not None:
            if reaped[0] in names:
                send({"ended": names.pop(reaped[0]), "status": reaped[1]})
            reaped = forking.reap_child()
