"""A pool of workers: interpreters that measure one item after another, each item with its own deadline.

A worker that dies or hangs costs the item it was working on; another is started for the rest, until that has happened
too often. Workers send messages as lines of JSON; their pool is the one loop that reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attncheck.core import interrupts
from attncheck.core.errors import Unanswered
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, closing_stream, describe_exit, kill_all
from attncheck.workers.scratch import scratch_folder

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.2  # between two looks at deadlines and interrupts
START_SECONDS = 180.0  # importing torch and opening the device, on a cold disk
MAX_LOSSES = 3  # lost items after which a job's remaining items are given up
LINE_LIMIT = 64 << 20
# Only attncheck is taken from our folder: whatever else lies beside it is not the examined environment's.
BOOTSTRAP = """\
import os, sys
out = os.dup(1)
os.dup2(2, 1)
sys.path[:] = [entry for entry in sys.path if entry and entry != os.getcwd()]
if sys.version_info < (3, 10):
    sys.exit("attncheck measures with Python 3.10 or newer; this is %d.%d" % sys.version_info[:2])
import importlib.util
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "attncheck", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
module = sys.modules["attncheck"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from attncheck.workers.inside.worker import main
main(out)
"""


@dataclass(frozen=True)
class Job:
    """The work of one worker: its name, the message it starts with, its items by name, and the seconds for each item.

    `extra_path` is a folder of packages that its interpreter, and all that it starts, finds before the environment's.
    """

    name: str
    message: Mapping[str, Any]
    items: tuple[str, ...]
    seconds: float
    extra_path: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened to an item of a job; `answer` is a document where it was measured, else `reason` is set.

    A "step" holds in `answer` how far a long item has come.
    """

    job: str
    item: str
    kind: Literal["started", "step", "answer", "raised", "died", "timed_out", "given_up"]
    answer: Any = None
    reason: str = ""


class Worker(Process):
    """One interpreter working on the items of a job; its messages arrive in a queue as (worker, document or None)."""

    def __init__(self, python: str, job: Job, folder: str, messages: queue.Queue[tuple[Worker, Any]]) -> None:
        """Start the interpreter. Raises `BadUsage` where it cannot be started."""
        self.job, self._messages = job, messages
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        environment = {**CHILD_ENVIRONMENT, **caches, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}
        environment |= overlay_environment(job.extra_path)
        super().__init__(python, ["-c", BOOTSTRAP, str(PACKAGE_FOLDER)], environment)

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._send_job, self._read_messages, *super()._stream_handlers()]

    def _send_job(self) -> None:
        """Send the job's message, and keep standard input open: its end shows the worker that we are gone."""
        line = json.dumps({**self.job.message, "items": self.job.items}).encode() + b"\n"
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read_messages(self) -> None:
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            while line := stream.readline(LINE_LIMIT):
                with contextlib.suppress(ValueError):
                    self._messages.put((self, json.loads(line)))
        self._messages.put((self, None))

    def stop(self) -> str:
        """Kill the worker, and return in a few words how it ended."""
        with contextlib.suppress(Exception):
            self._process.wait(1.0)
        code = self._process.returncode
        self.kill()
        self._threads[-1].join(1.0)
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        return describe_exit(code if code is not None else self._process.returncode or 0, self.stderr)


@dataclass
class _RunningWorker:
    """A worker with what is left of its job."""

    worker: Worker
    remaining: list[str]
    deadline: float
    current_item: str = ""
    losses: int = 0
    ready: bool = False


@dataclass
class Pool:
    """Runs jobs, up to `slots` workers at once. `device` is what the first ready worker reports of its device."""

    python: str
    slots: int
    device: dict[str, Any] = field(default_factory=dict)

    def run(
        self, jobs: Sequence[Job], on_event: Callable[[Event], None], until: float | None = None
    ) -> tuple[str, ...]:
        """Run every job, passing each event to `on_event`, and return the items not reached at `until`.

        `until` is a time.monotonic() value; an item is named "job item". Whatever stops us, no worker outlives this
        function. Raises `Unanswered` where a worker finds no device to work on.
        """
        waiting = [(job, list(job.items), 0) for job in jobs if job.items]
        running: list[_RunningWorker] = []
        messages: queue.Queue[tuple[Worker, Any]] = queue.Queue()
        with scratch_folder() as folder:
            try:
                while waiting or running:
                    while waiting and len(running) < self.slots:
                        running.append(self._start_worker(*waiting.pop(0), folder, messages))
                    self._poll_workers(running, waiting, messages, on_event)
                    if until is not None and time.monotonic() > until:
                        break
            finally:
                kill_all()
        unfinished = [(r.worker.job, r.remaining) for r in running] + [(job, items) for job, items, _ in waiting]
        return tuple(f"{job.name} {item}" for job, items in unfinished for item in items)

    def _start_worker(
        self, job: Job, remaining: list[str], losses: int, folder: str, messages: queue.Queue[tuple[Worker, Any]]
    ) -> _RunningWorker:
        rest_of_job = replace(job, message={**job.message, "folder": folder}, items=tuple(remaining))
        worker = Worker(self.python, rest_of_job, folder, messages)
        return _RunningWorker(worker, remaining, time.monotonic() + START_SECONDS, losses=losses)

    def _poll_workers(
        self,
        running: list[_RunningWorker],
        waiting: list[tuple[Job, list[str], int]],
        messages: queue.Queue[tuple[Worker, Any]],
        on_event: Callable[[Event], None],
    ) -> None:
        """Handle the messages that arrive within one poll, and stop the workers whose deadline has passed."""
        with contextlib.suppress(queue.Empty):
            worker, document = messages.get(timeout=POLL_SECONDS)
            sender = next((r for r in running if r.worker is worker), None)
            if sender is not None:
                self._handle_message(sender, document, running, waiting, on_event)
        interrupts.raise_if_interrupted()
        for late in [r for r in running if time.monotonic() > r.deadline]:
            self._record_loss(late, "timed_out", running, waiting, on_event)

    def _handle_message(
        self,
        sender: _RunningWorker,
        document: Any,
        running: list[_RunningWorker],
        waiting: list[tuple[Job, list[str], int]],
        on_event: Callable[[Event], None],
    ) -> None:
        job = sender.worker.job
        if document is not None and not isinstance(document, dict):
            return  # a backend wrote to our channel
        if document is None:
            if sender.remaining:
                self._record_loss(sender, "died", running, waiting, on_event)
            else:
                sender.worker.stop()
                running.remove(sender)
            return
        if "unanswered" in document:
            raise Unanswered(document["unanswered"])
        if "device" in document:
            sender.ready = True
            self.device = self.device or document["device"]
            sender.deadline = time.monotonic() + job.seconds
        elif "started" in document:
            sender.current_item = document["started"]
            sender.deadline = time.monotonic() + job.seconds
            on_event(Event(job.name, sender.current_item, "started"))
        elif "step" in document and sender.current_item:
            sender.deadline = time.monotonic() + job.seconds
            on_event(Event(job.name, sender.current_item, "step", document))
        elif "waiting" in document:
            sender.deadline = time.monotonic() + job.seconds
        elif "answer" in document and document.get("item") in sender.remaining:
            sender.remaining.remove(document["item"])
            sender.current_item = ""
            sender.deadline = time.monotonic() + job.seconds
            on_event(Event(job.name, document["item"], "answer", document["answer"]))

    def _record_loss(
        self,
        lost: _RunningWorker,
        kind: Literal["died", "timed_out"],
        running: list[_RunningWorker],
        waiting: list[tuple[Job, list[str], int]],
        on_event: Callable[[Event], None],
    ) -> None:
        """Report the item that was lost with its worker, and put the others back in the queue."""
        job = lost.worker.job
        exit_description = lost.worker.stop()
        running.remove(lost)
        seconds = job.seconds if lost.ready else START_SECONDS
        reason = exit_description if kind == "died" else f"no answer within {seconds:g} s; it was stopped"
        if not lost.ready:
            for item in lost.remaining:
                on_event(Event(job.name, item, kind, reason=f"the worker did not start: {reason}"))
            return
        if lost.current_item:  # else it ended between two items, by its own decision, and none is at fault
            lost.remaining.remove(lost.current_item)
            on_event(Event(job.name, lost.current_item, kind, reason=reason))
        if lost.losses + 1 >= MAX_LOSSES:
            given_up = f"given up after {MAX_LOSSES} lost workers: {reason}"
            for item in lost.remaining:
                on_event(Event(job.name, item, "given_up", reason=given_up))
        elif lost.remaining:
            waiting.insert(0, (job, lost.remaining, lost.losses + 1))


def overlay_environment(extra_path: str) -> dict[str, str]:
    """Return the variables with which a Python imports from `extra_path` first; empty without one."""
    if not extra_path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (extra_path, os.environ.get("PYTHONPATH"))))}


def default_slots(gpu: bool) -> int:
    """Return how many workers run at once: on a GPU up to ten share it; on the CPU one per core, up to eight."""
    return min(10, count_cores()) if gpu else min(8, count_cores())


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
