"""Runs a tree of jobs in forked children, each with its own deadline, and leaves no process behind.

A fork server (a job with `is_fork_server`) stays alive after its work. The jobs that depend on it are forked from it,
so that its imports happen only once. The supervisor is a separate process that imports no examined package. It alone
decides which job starts, and it kills jobs. A fork server only forks the jobs that the supervisor names and reports how
its children ended.

A fork differs slightly from a fresh start. Therefore a job that fails in a child of a fork server is tried again in a
new child of the supervisor, and the second answer counts. Such a job died, hung, or raised an error that mentions
forking.
"""

from __future__ import annotations

import os
import select
import time

from ..facts import describe_error
from . import forking
from .job import POLL_SECONDS, describe_failure, is_fork_failure, restore_first_try, run_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .forking import Message
    from .job import Job

MAX_RUNNING = 8  # children that run at the same time, not counting fork servers that are ready
GRACE_SECONDS = 5.0  # on top of the common end time, for jobs that could only start late


class Supervisor:
    """The loop that starts the children, reads their messages, enforces their deadlines and kills them."""

    def __init__(self, jobs: list[Job], deadline: float, lifeline_reader: int, records_writer: int) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.deadline, self.lifeline_reader, self.records_writer = deadline, lifeline_reader, records_writer
        self.end_time = time.monotonic() + deadline
        for job in jobs:
            job.pipes = forking.Pipes()

    def run(self) -> dict[str, Message]:
        """Return the jobs' records by name; empty if the parent process no longer exists."""
        while any(job.state in ("waiting", "running") for job in self.jobs.values()):
            self._start_waiting_jobs()
            if not self._read_ready_pipes():
                return {}
            self._reap_children()
            self._enforce_deadlines()
        return {name: job.to_record() for name, job in self.jobs.items()}

    def stop(self) -> None:
        """Kill every child, then every process that they started in other sessions."""
        for job in self.jobs.values():
            if job.pid and job.state in ("running", "serving"):
                forking.kill_process_group(job.pid)
        forking.kill_descendants()

    # Starting

    def _start_waiting_jobs(self) -> None:
        busy = sum(job.state == "running" for job in self.jobs.values())
        for job in self.jobs.values():
            if job.state != "waiting" or busy >= MAX_RUNNING:
                continue
            decision, reason = self._choose_parent_process(job)
            if decision == "skip":
                self._finish_job(job, "skipped", reason)
            elif decision != "wait":
                busy += 1
                self._launch_job(job)

    def _choose_parent_process(self, job: Job) -> tuple[str, str]:
        """Return where to fork `job`: "supervisor", "fork server", "wait", or "skip" with the reason."""
        job.forked_from = None
        parent = self.jobs.get(job.parent)
        while parent is not None:
            if parent.state in ("waiting", "running"):
                return "wait", ""
            if parent.state == "serving":
                job.forked_from = None if parent.is_unfit or job.retried else parent
                return ("fork server", "") if job.forked_from else ("supervisor", "")
            if parent.vital and not job.retried:
                return "skip", parent.name + " " + describe_failure(parent)
            parent = self.jobs.get(parent.parent)
        return "supervisor", ""

    def _launch_job(self, job: Job) -> None:
        now = time.monotonic()
        job.state, job.started_at = "running", now
        job.allowed_seconds = max(
            min(self.deadline * job.deadline_share, self.end_time - now), min(self.deadline / 4, GRACE_SECONDS)
        )
        job.stop_at = now + job.allowed_seconds
        assert job.pipes is not None
        if job.forked_from is not None and job.forked_from.pipes is not None:
            try:
                forking.make_sender(job.forked_from.pipes.commands[1])({"fork": job.name})
            except OSError:  # the fork server has just died
                self._retry(job)
            return None
        parent = os.getpid()
        try:
            pid = forking.fork()
        except OSError as error:
            return self._finish_job(job, "lost", "no process could be started: " + describe_error(error))
        if pid == 0:
            run_job(job, parent, self.jobs, self._supervisor_descriptors())
        job.pid = pid
        return None

    def _supervisor_descriptors(self) -> list[int]:
        descriptors = [self.lifeline_reader, self.records_writer]
        for job in self.jobs.values():
            if job.pipes is not None:
                descriptors += job.pipes.supervisor_descriptors()
        return descriptors

    # Reading

    def _read_ready_pipes(self) -> bool:
        """Read what the children wrote; return False if the parent no longer exists."""
        owners: dict[int, Job] = {}
        for job in self.jobs.values():
            if job.pipes is not None and job.state in ("running", "serving"):
                owners[job.pipes.answers[0]] = owners[job.pipes.stderr[0]] = job
        poll = select.poll()  # not select(), because descriptors may be above 1023
        for descriptor in (self.lifeline_reader, *owners):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(POLL_SECONDS * 1000):
            if descriptor == self.lifeline_reader:
                return False
            self._read_pipe(owners[descriptor], descriptor)
        return True

    def _read_pipe(self, job: Job, descriptor: int) -> None:
        if job.pipes is None or descriptor not in job.pipes.supervisor_descriptors():
            return  # closed since poll() reported it readable
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if descriptor == job.pipes.stderr[0]:
            job.stderr = (job.stderr + chunk)[-forking.STDERR_TAIL :]
            return
        for message in job.decoder.feed(chunk):
            self._handle_message(job, message)

    def _handle_message(self, job: Job, message: Message) -> None:
        if job.dump_requested:  # its time was up when the dump was requested; the signal may have woken it
            return
        if "pid" in message:
            job.pid = int(message["pid"])
        elif "ended" in message:  # a fork server reports its child's end
            child = self.jobs.get(str(message["ended"]))
            if child is not None and child.forked_from is job:
                self._handle_exit(child, int(message.get("status", 0)), str(message.get("why", "")))
        elif "ready" in message:
            job.is_unfit = bool(message["ready"])
            job.state, job.ending, job.stopped_at = "serving", "done", time.monotonic()
        elif "done" in message:
            if is_fork_failure(job) and self._retry(job):
                return
            self._finish_job(job, "done", "")
        else:
            job.answers.append(message)

    # Ending

    def _reap_children(self) -> None:
        while True:
            reaped = forking.reap_child()
            if reaped is None:
                return
            for job in self.jobs.values():
                if job.pid == reaped[0] and job.state in ("running", "serving"):
                    self._handle_exit(job, reaped[1], "")
                    break

    def _handle_exit(self, job: Job, status: int, skip_reason: str) -> None:
        """Record that the process of `job` ended, after reading the remaining data in its pipes."""
        self._drain_pipes(job)
        job.pid = 0  # reaped: another process may have this id by now
        if job.state == "serving":
            return self._handle_fork_server_exit(job)
        if job.state != "running":
            return None
        if job.dump_requested:
            job.stop_at = 0.0
            return None
        if skip_reason:
            return self._finish_job(job, "lost", skip_reason)
        job.status = status
        if not self._retry(job):
            self._finish_job(job, "died", "")
        return None

    def _handle_fork_server_exit(self, fork_server: Job) -> None:
        fork_server.is_unfit = True
        for job in self.jobs.values():
            if job.forked_from is fork_server and job.state == "running" and not self._retry(job):
                self._finish_job(job, "lost", fork_server.name + " ended while this was being imported from it")
        fork_server.state = "serving"

    def _drain_pipes(self, job: Job) -> None:
        if job.pipes is None:
            return
        for descriptor in (job.pipes.stderr[0], job.pipes.answers[0]):
            while job.pipes is not None and forking.is_readable(descriptor, 0):
                self._read_pipe(job, descriptor)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for job in self.jobs.values():
            if job.state != "running" or now < job.stop_at:
                continue
            if not job.dump_requested and job.pid and forking.DUMP_SIGNAL is not None:
                job.dump_requested = True  # gives it a moment to write where it hangs
                job.stop_at = now + 5 * POLL_SECONDS
                forking.send_signal(job.pid, forking.DUMP_SIGNAL)
                continue
            if not self._retry(job):
                had_enough_time = job.allowed_seconds >= 0.5 * self.deadline * job.deadline_share
                reason = "stopped after %.1f s, because the %.0f s for all imports were used up"
                self._finish_job(
                    job,
                    "hung" if had_enough_time else "lost",
                    "" if had_enough_time else reason % (now - job.started_at, self.deadline),
                )

    def _retry(self, job: Job) -> bool:
        """Start `job` again in a new process, if it was forked from a fork server and time is left."""
        if job.forked_from is None or job.retried or self.end_time - time.monotonic() < 1.0:
            return False
        self._kill_job(job)
        job.stopped_at = time.monotonic()
        job.ending = "hung" if job.dump_requested else "died" if job.status else "done"
        job.first_record = job.to_record()
        job.retried, job.forked_from, job.pid, job.status, job.dump_requested = True, None, 0, 0, False
        job.answers, job.stderr, job.decoder, job.state = [], b"", forking.MessageDecoder(), "waiting"
        self._close_pipes(job)
        job.pipes = forking.Pipes()
        return True

    def _finish_job(self, job: Job, ending: str, skip_reason: str) -> None:
        job.stopped_at = time.monotonic()
        self._kill_job(job)
        self._drain_pipes(job)
        job.state, job.ending, job.skip_reason = "finished", ending, skip_reason
        self._close_pipes(job)
        if job.first_record is not None and job.first_record["end"] == "hung" and ending in ("hung", "skipped", "lost"):
            restore_first_try(job)

    def _kill_job(self, job: Job) -> None:
        if job.pid:
            forking.kill_process_group(job.pid)

    def _close_pipes(self, job: Job) -> None:
        if job.pipes is not None:
            forking.close_descriptors(job.pipes.supervisor_descriptors() + job.pipes.child_descriptors())
        job.pipes = None
