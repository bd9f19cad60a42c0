"""Runs a tree of jobs in forked children, each with its own deadline, and leaves no process behind.

A job whose `nursery` is true stays alive after it has done its work: the jobs that depend on it are forked from it,
so that what it imported is imported once. The keeper is a process of its own that imports nothing foreign. It alone
decides who starts, and it kills; a nursery only forks what it is told to and reports how its children ended.

A fork is nearly, not quite, a fresh start. So what ends badly in a child of a nursery (it died, it hung, it spoke of
forking) is tried once more in a child of the keeper, which starts from nothing, and that answer is the one that counts.
"""

from __future__ import annotations

import os
import select
import time

from ..facts import failure
from . import forking
from . import job as job_side
from .job import TICK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    from .forking import Message
    from .job import Job

AT_ONCE = 8  # children at work at the same time, not counting nurseries at rest
GRACE = 5.0  # seconds beyond the common end for what could only start late


class Keeper:
    """The loop that starts, listens to, times and kills the children."""

    def __init__(self, jobs: List[Job], deadline: float, alive: int, out: int) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.deadline, self.alive, self.out = deadline, alive, out
        self.end = time.monotonic() + deadline
        for job in jobs:
            job.pipes = forking.Pipes()

    def run(self) -> Dict[str, Message]:
        """Return the records; empty where the process that wanted them is gone."""
        while any(job.state in ("waiting", "running") for job in self.jobs.values()):
            self._start()
            if not self._listen():
                return {}
            self._reap()
            self._enforce()
        return {name: job.record() for name, job in self.jobs.items()}

    def stop(self) -> None:
        """Kill every child, then whatever they had started elsewhere."""
        for job in self.jobs.values():
            if job.pid and job.state in ("running", "resting"):
                forking.kill_group(job.pid)
        forking.sweep()

    # Starting

    def _start(self) -> None:
        busy = sum(job.state == "running" for job in self.jobs.values())
        for job in self.jobs.values():
            if job.state != "waiting" or busy >= AT_ONCE:
                continue
            where, why = self._source(job)
            if where == "skip":
                self._over(job, "skipped", why)
            elif where != "wait":
                busy += 1
                self._launch(job)

    def _source(self, job: Job) -> Tuple[str, str]:
        """Say where to fork `job` from: "here", "nursery", "wait" or "skip" with the reason."""
        job.source = None
        parent = self.jobs.get(job.parent)
        while parent is not None:
            if parent.state in ("waiting", "running"):
                return "wait", ""
            if parent.state == "resting":
                job.source = None if parent.is_unfit or job.retried else parent
                return ("nursery", "") if job.source else ("here", "")
            if parent.vital and not job.retried:
                return "skip", parent.name + " " + job_side.how(parent)
            parent = self.jobs.get(parent.parent)
        return "here", ""

    def _launch(self, job: Job) -> None:
        now = time.monotonic()
        job.state, job.started = "running", now
        job.allowed = max(min(self.deadline * job.share, self.end - now), min(self.deadline / 4, GRACE))
        job.limit = now + job.allowed
        assert job.pipes is not None
        if job.source is not None and job.source.pipes is not None:
            try:
                forking.sender(job.source.pipes.commands[1])({"fork": job.name})
            except OSError:  # the nursery has just died
                self._again(job)
            return None
        parent = os.getpid()
        try:
            pid = forking.fork()
        except OSError as error:
            return self._over(job, "skipped", "no process could be started: " + failure(error))
        if pid == 0:
            job_side.be(job, parent, self.jobs, self._own_descriptors())
        job.pid = pid
        return None

    def _own_descriptors(self) -> List[int]:
        own = [self.alive, self.out]
        for job in self.jobs.values():
            if job.pipes is not None:
                own += job.pipes.keeper_side()
        return own

    # Listening

    def _listen(self) -> bool:
        """Take in what the children wrote; False where our own parent is gone."""
        owners: Dict[int, Job] = {}
        for job in self.jobs.values():
            if job.pipes is not None and job.state in ("running", "resting"):
                owners[job.pipes.answers[0]] = owners[job.pipes.errors[0]] = job
        poll = select.poll()  # not select: descriptors may be numbered above 1023
        for descriptor in (self.alive, *owners):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(TICK * 1000):
            if descriptor == self.alive:
                return False
            self._read(owners[descriptor], descriptor)
        return True

    def _read(self, job: Job, descriptor: int) -> None:
        if job.pipes is None or descriptor not in job.pipes.keeper_side():
            return  # closed since it was found readable
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if descriptor == job.pipes.errors[0]:
            job.errors = (job.errors + chunk)[-forking.TAIL :]
            return
        for message in job.inbox.feed(chunk):
            self._take(job, message)

    def _take(self, job: Job, message: Message) -> None:
        if job.dumped:  # its time was up when it was asked where it hangs; that may have shaken it loose
            return
        if "pid" in message:
            job.pid = int(message["pid"])
        elif "ended" in message:  # a nursery tells of its child
            child = self.jobs.get(str(message["ended"]))
            if child is not None and child.source is job:
                self._ended(child, int(message.get("status", 0)), str(message.get("why", "")))
        elif "ready" in message:
            job.is_unfit = bool(message["ready"])
            job.state, job.end, job.stopped = "resting", "done", time.monotonic()
        elif "done" in message:
            if job_side.speaks_of_forking(job) and self._again(job):
                return
            self._over(job, "done", "")
        else:
            job.answers.append(message)

    # Ending

    def _reap(self) -> None:
        while True:
            buried = forking.bury()
            if buried is None:
                return
            for job in self.jobs.values():
                if job.pid == buried[0] and job.state in ("running", "resting"):
                    self._ended(job, buried[1], "")
                    break

    def _ended(self, job: Job, status: int, why: str) -> None:
        """Take note that the process of `job` ended, first reading what it still had to say."""
        self._drain(job)
        job.pid = 0  # reaped: the number may be another's by now
        if job.state == "resting":
            return self._nursery_lost(job)
        if job.state != "running":
            return None
        if job.dumped:
            job.limit = 0.0
            return None
        if why:
            return self._over(job, "skipped", why)
        job.status = status
        if not self._again(job):
            self._over(job, "died", "")
        return None

    def _nursery_lost(self, nursery: Job) -> None:
        nursery.is_unfit = True
        for job in self.jobs.values():
            if job.source is nursery and job.state == "running" and not self._again(job):
                self._over(job, "skipped", nursery.name + " ended while this was being imported from it")
        nursery.state = "resting"

    def _drain(self, job: Job) -> None:
        if job.pipes is None:
            return
        for descriptor in (job.pipes.errors[0], job.pipes.answers[0]):
            while job.pipes is not None and forking.readable(descriptor, 0):
                self._read(job, descriptor)

    def _enforce(self) -> None:
        now = time.monotonic()
        for job in self.jobs.values():
            if job.state != "running" or now < job.limit:
                continue
            if not job.dumped and job.pid and forking.DUMP_SIGNAL is not None:
                job.dumped = True  # where does it hang? give it a moment to write that down
                job.limit = now + 5 * TICK
                forking.tell(job.pid, forking.DUMP_SIGNAL)
                continue
            if not self._again(job):
                enough = job.allowed >= 0.5 * self.deadline * job.share
                spent = "stopped after %.1f s, for the %.0f s of all imports were used up"
                self._over(
                    job, "hung" if enough else "skipped", "" if enough else spent % (now - job.started, self.deadline)
                )

    def _again(self, job: Job) -> bool:
        """Start `job` once more, from nothing, where it was forked from a nursery and time is left."""
        if job.source is None or job.retried or self.end - time.monotonic() < 1.0:
            return False
        self._kill(job)
        job.stopped = time.monotonic()
        job.end = "hung" if job.dumped else "died" if job.status else "done"
        job.earlier = job.record()
        job.retried, job.source, job.pid, job.status, job.dumped = True, None, 0, 0, False
        job.answers, job.errors, job.inbox, job.state = [], b"", forking.Inbox(), "waiting"
        self._close(job)
        job.pipes = forking.Pipes()
        return True

    def _over(self, job: Job, end: str, why: str) -> None:
        job.stopped = time.monotonic()
        self._kill(job)
        self._drain(job)
        job.state, job.end, job.why = "over", end, why
        self._close(job)
        if job.earlier is not None and job.earlier["end"] == "hung" and end in ("hung", "skipped"):
            job_side.restore(job)

    def _kill(self, job: Job) -> None:
        if job.pid:
            forking.kill_group(job.pid)

    def _close(self, job: Job) -> None:
        if job.pipes is not None:
            forking.close_all(job.pipes.keeper_side() + job.pipes.child_side())
        job.pipes = None
