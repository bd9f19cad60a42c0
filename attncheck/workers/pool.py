"""Workers: interpreters that measure one item after another, each item with its own deadline.

A worker that dies or hangs costs the item it was at; another is started for the rest, until that has happened too
often. Workers tell what they do as lines of JSON; their pool is the one loop that listens.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attncheck.core import interrupts
from attncheck.core.errors import Unanswered
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, ending, piped, stop_all

PACKAGE = Path(__file__).resolve().parents[1]
TICK = 0.2  # seconds between looks at deadlines and interrupts
START_SECONDS = 180.0  # importing torch and opening the device, on a cold disk
LOSSES = 3  # lost items after which a worker's remaining items are given up
LINE_LIMIT = 64 << 20
# Only attncheck is taken from our folder: whatever else lies beside it is not the examined environment's.
BOOTSTRAP = """\
import os, sys
out = os.dup(1)
os.dup2(2, 1)
sys.path[:] = [entry for entry in sys.path if entry]
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
    """What one worker is for: its name, the message it starts with, its items by name, and seconds for each.

    `extra_path` is a folder of packages that its interpreter, and all that it starts, finds before the environment's.
    """

    name: str
    message: Mapping[str, Any]
    items: tuple[str, ...]
    seconds: float
    extra_path: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened to an item of a job. `answer` is a document where it was measured, else `reason` says.

    A "step" says in `answer` how far a long item has come.
    """

    job: str
    item: str
    kind: Literal["started", "step", "answer", "raised", "died", "timed_out", "given_up"]
    answer: Any = None
    reason: str = ""


class Worker(Process):
    """One interpreter at work on the items of a job; what it says arrives in a queue as (worker, document or None)."""

    def __init__(self, python: str, job: Job, folder: str, said: queue.Queue[tuple[Worker, Any]]) -> None:
        """Start it. Raises `BadUsage` where the interpreter cannot be started."""
        self.job, self._said = job, said
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        environment = {**CHILD_ENVIRONMENT, **caches, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}
        environment |= beside(job.extra_path)
        super().__init__(python, ["-c", BOOTSTRAP, str(PACKAGE)], environment)

    def _servers(self) -> list[Callable[[], None]]:
        return [self._send, self._read_lines, *super()._servers()]

    def _send(self) -> None:
        """Send the message, and keep standard input open: its end tells the worker that we are gone."""
        line = json.dumps({**self.job.message, "items": self.job.items}).encode() + b"\n"
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read_lines(self) -> None:
        with contextlib.suppress(OSError, ValueError), piped(self._process.stdout) as stream:
            while line := stream.readline(LINE_LIMIT):
                with contextlib.suppress(ValueError):
                    self._said.put((self, json.loads(line)))
        self._said.put((self, None))

    def end(self) -> str:
        """Kill it, and return in a few words how it ended."""
        with contextlib.suppress(Exception):
            self._process.wait(1.0)
        code = self._process.returncode
        self.kill()
        self._threads[-1].join(1.0)
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        return ending(code if code is not None else self._process.returncode or 0, self.stderr)


@dataclass
class _Running:
    """A worker with what is left of its job."""

    worker: Worker
    left: list[str]
    deadline: float
    at: str = ""
    losses: int = 0
    ready: bool = False


@dataclass
class Pool:
    """Runs jobs, up to `slots` workers at once. `device` is what the first ready worker said of its device."""

    python: str
    slots: int
    device: dict[str, Any] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], tell: Callable[[Event], None], until: float | None = None) -> tuple[str, ...]:
        """Run every job, telling what happens; stop at `until` (time.monotonic()). Return the items not reached.

        Each is named "job item". Whatever stops us, no worker outlives this function. Raises `Unanswered` where a
        worker finds no device to work on.
        """
        waiting = [(job, list(job.items), 0) for job in jobs if job.items]
        running: list[_Running] = []
        said: queue.Queue[tuple[Worker, Any]] = queue.Queue()
        with tempfile.TemporaryDirectory(prefix="attncheck-", ignore_cleanup_errors=True) as folder:
            try:
                while waiting or running:
                    while waiting and len(running) < self.slots:
                        running.append(self._start(*waiting.pop(0), folder, said))
                    self._hear(running, waiting, said, tell)
                    if until is not None and time.monotonic() > until:
                        break
            finally:
                stop_all()
        left = [(r.worker.job, r.left) for r in running] + [(job, items) for job, items, _ in waiting]
        return tuple(f"{job.name} {item}" for job, items in left for item in items)

    def _start(
        self, job: Job, left: list[str], losses: int, folder: str, said: queue.Queue[tuple[Worker, Any]]
    ) -> _Running:
        rest = replace(job, message={**job.message, "folder": folder}, items=tuple(left))
        worker = Worker(self.python, rest, folder, said)
        return _Running(worker, left, time.monotonic() + START_SECONDS, losses=losses)

    def _hear(
        self,
        running: list[_Running],
        waiting: list[tuple[Job, list[str], int]],
        said: queue.Queue[tuple[Worker, Any]],
        tell: Callable[[Event], None],
    ) -> None:
        """Take what workers say for a tick, and end those whose time is up."""
        with contextlib.suppress(queue.Empty):
            worker, document = said.get(timeout=TICK)
            one = next((r for r in running if r.worker is worker), None)
            if one is not None:
                self._take(one, document, running, waiting, tell)
        interrupts.check()
        for one in [r for r in running if time.monotonic() > r.deadline]:
            self._lose(one, "timed_out", running, waiting, tell)

    def _take(
        self,
        one: _Running,
        document: Any,
        running: list[_Running],
        waiting: list[tuple[Job, list[str], int]],
        tell: Callable[[Event], None],
    ) -> None:
        job = one.worker.job
        if document is not None and not isinstance(document, dict):
            return  # a backend wrote to our channel
        if document is None:
            if one.left:
                self._lose(one, "died", running, waiting, tell)
            else:
                one.worker.end()
                running.remove(one)
            return
        if "unanswered" in document:
            raise Unanswered(document["unanswered"])
        if "device" in document:
            one.ready = True
            self.device = self.device or document["device"]
            one.deadline = time.monotonic() + job.seconds
        elif "started" in document:
            one.at = document["started"]
            one.deadline = time.monotonic() + job.seconds
            tell(Event(job.name, one.at, "started"))
        elif "step" in document and one.at:
            one.deadline = time.monotonic() + job.seconds
            tell(Event(job.name, one.at, "step", document))
        elif "waiting" in document:
            one.deadline = time.monotonic() + job.seconds
        elif "answer" in document and document.get("item") in one.left:
            one.left.remove(document["item"])
            one.at = ""
            one.deadline = time.monotonic() + job.seconds
            tell(Event(job.name, document["item"], "answer", document["answer"]))

    def _lose(
        self,
        one: _Running,
        how: Literal["died", "timed_out"],
        running: list[_Running],
        waiting: list[tuple[Job, list[str], int]],
        tell: Callable[[Event], None],
    ) -> None:
        """Tell of the item that was lost with its worker, and put the others back in the queue."""
        job = one.worker.job
        told = one.worker.end()
        running.remove(one)
        seconds = job.seconds if one.ready else START_SECONDS
        reason = told if how == "died" else f"no answer within {seconds:g} s; it was stopped"
        if not one.ready:
            for item in one.left:
                tell(Event(job.name, item, how, reason=f"the worker did not start: {reason}"))
            return
        if one.at:  # else it ended between two items, by its own decision, and none is at fault
            one.left.remove(one.at)
            tell(Event(job.name, one.at, how, reason=reason))
        if one.losses + 1 >= LOSSES:
            for other in one.left:
                tell(Event(job.name, other, "given_up", reason=f"given up after {LOSSES} lost workers: {reason}"))
        elif one.left:
            waiting.insert(0, (job, one.left, one.losses + 1))


def beside(extra_path: str) -> dict[str, str]:
    """Return the environment in which a Python looks into `extra_path` first; empty without one."""
    if not extra_path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (extra_path, os.environ.get("PYTHONPATH"))))}


def default_slots(gpu: bool) -> int:
    """Return how many workers run at once: on a GPU a few share it; on the CPU one for each core."""
    return min(10, cores()) if gpu else min(8, cores())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
