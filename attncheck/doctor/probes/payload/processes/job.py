"""One thing to do in a forked child, and the child's side of doing it."""

from __future__ import annotations

import os
import time

from ..facts import failure
from . import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional

    from .forking import Message, Send

TICK = 0.02  # seconds between looks at children that may have ended


class Job:
    """One thing to do in a child: `work(send)` sends its answers; a nursery's work returns whether it is ready."""

    def __init__(
        self,
        name: str,
        work: Callable[[Send], bool],
        parent: str = "",
        nursery: bool = False,
        share: float = 0.5,
        vital: bool = False,
        unfit: Optional[Callable[[], str]] = None,
    ) -> None:
        """`share` of the deadline is this job's own; where a `vital` parent fails, its dependants are skipped."""
        self.name, self.work, self.parent, self.nursery = name, work, parent, nursery
        self.share, self.vital, self.unfit = share, vital, unfit
        self.state = "waiting"  # then "running", "resting" (a nursery that is ready), "over"
        self.end = ""  # "done", "died", "hung", "skipped"
        self.why = ""
        self.answers: List[Message] = []
        self.errors = b""
        self.status = 0
        self.pid = 0
        self.started = self.limit = self.stopped = self.allowed = 0.0
        self.source: Optional[Job] = None  # the nursery it was forked from
        self.retried = False
        self.earlier: Optional[Message] = None  # the record of the first try
        self.pipes: Optional[forking.Pipes] = None
        self.inbox = forking.Inbox()
        self.dumped = self.is_unfit = False

    def record(self) -> Message:
        """Return how it ended, as plain data."""
        return {
            "end": self.end,
            "why": self.why,
            "answers": self.answers,
            "errors": self.errors.decode("utf-8", "replace"),
            "status": self.status,
            "seconds": round(max(0.0, self.stopped - self.started), 3) if self.started else 0.0,
        }


def restore(job: Job) -> None:
    """Let the first, longer try speak, where the second ran out of time."""
    earlier: Any = job.earlier
    job.end, job.why, job.answers, job.status = "hung", "", earlier["answers"], earlier["status"]
    job.errors = earlier["errors"].encode("utf-8", "replace")
    job.started, job.stopped = 0.001, 0.001 + earlier["seconds"]


def how(job: Job) -> str:
    """Say how a job failed that others depend on."""
    for answer in job.answers:
        if "failed" in answer:
            return str(answer["failed"])
    return {"died": "died on import", "hung": "hung on import"}.get(job.end, "could not be imported")


def speaks_of_forking(job: Job) -> bool:
    """Say whether `job` failed in a way that only a forked process can: CUDA cannot be started again in one."""
    text = " ".join(str(answer) for answer in job.answers if "failed" in answer).lower()
    return job.source is not None and ("fork" in text or "cuda error: initialization error" in text)


def be(job: Job, parent: int, jobs: Dict[str, Job], foreign: Iterable[int]) -> None:
    """Be the child that does `job`; never returns."""
    status = 70
    try:
        assert job.pipes is not None
        forking.become_child(parent, job.pipes, foreign)
        send = forking.sender(job.pipes.answers[1])
        send({"pid": os.getpid()})
        forking.report_crashes(job.pipes.errors[1])
        if not job.nursery:
            _lower_priority()
        if job.work(send) and job.nursery:
            send({"ready": job.unfit() if job.unfit is not None else ""})
            _serve(job, jobs, send)
        send({"done": True})
        while os.getppid() == parent:  # the keeper kills this process with whatever the import has started
            time.sleep(0.2)
        status = 0
    finally:
        os._exit(status)


def _lower_priority() -> None:
    try:
        os.nice(3)  # what others wait for goes first
    except OSError:
        return


def _serve(nursery: Job, jobs: Dict[str, Job], send: Send) -> None:
    """Fork the jobs that are asked for and report how they end, as long as the parent lives."""
    assert nursery.pipes is not None
    commands, inbox, parent, me = nursery.pipes.commands[0], forking.Inbox(), os.getppid(), os.getpid()
    names: Dict[int, str] = {}
    while os.getppid() == parent:
        if forking.readable(commands, TICK if names else 0.5):
            for message in inbox.feed(os.read(commands, 1 << 16)):
                job = jobs[message["fork"]]
                try:
                    pid = forking.fork()
                except OSError as error:
                    send({"ended": job.name, "why": "no process could be started: " + failure(error)})
                    continue
                if pid == 0:
                    be(job, me, jobs, ())
                names[pid] = job.name
        buried = forking.bury()
        while buried is not None:
            if buried[0] in names:
                send({"ended": names.pop(buried[0]), "status": buried[1]})
            buried = forking.bury()
