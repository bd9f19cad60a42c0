"""A pool of workers: interpreters that measure one item after another, each item with its own deadline.

A worker that dies or hangs loses only its current item. Another worker is started for the rest, except the items with
the features of the lost ones, until too many are lost (`losses.py`). If an item ran out of time while its worker was
active, the machine may have been too busy: it is tried once more after all others, alone and with more time. Workers
send messages as lines of JSON; only the pool's loop reads them.
"""

import contextlib
import json
import os
import queue
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attncheck.core.io import interrupts
from attncheck.core.io.errors import Unanswered
from attncheck.workers import fork_server
from attncheck.workers.fork_server import ForkServer
from attncheck.workers.forked import ForkedProcess
from attncheck.workers.losses import Losses
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, closing_stream, describe_exit, kill_all
from attncheck.workers.processor_time import CpuSample, CpuUse, compare_samples, sample_cpu
from attncheck.workers.processors import count_cores, thread_environment
from attncheck.workers.scratch import scratch_folder

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.2  # between two checks of deadlines and interrupts
START_SECONDS = 180.0  # for importing torch and opening the device, from a cold disk
RETRY_FACTOR = 3.0  # factor on the seconds of an item that is tried again after it ran out of time
NO_TIME_LEFT = "ran out of time, with no time left for another attempt: not judged"
LINE_LIMIT = 64 << 20
# Only attncheck is imported from our folder; packages next to it do not belong to the examined environment.
BOOTSTRAP = """\
import os, sys
out = os.dup(1)
os.dup2(2, 1)
sys.path[:] = [entry for entry in sys.path if entry and entry != os.getcwd()]
if sys.version_info < (3, 10):
    sys.exit("attncheck measures with Python 3.10 or newer; this is %d.%d" % sys.version_info[:2])
import importlib, importlib.util
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "attncheck", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
module = sys.modules["attncheck"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
importlib.import_module("attncheck.workers.inside." + sys.argv[2]).main(out)
"""


@dataclass(frozen=True)
class Job:
    """The work of one worker: its name, start message, items by name, and the seconds for each item.

    `extra_path` is a folder of packages that its interpreter and its child processes import from before the
    environment's own. If it `spins`, its threads spin while they wait, as in a training job, which timings need. Jobs
    with one name do the same work: a worker that asks for more gets the next one. `features` names each item's
    features, by which it is skipped if similar items are lost. Workers with the same environment and the same `imports`
    are forked from one process: modules that it imports once, without side effects on a device.
    """

    name: str
    message: Mapping[str, Any]
    items: tuple[str, ...]
    seconds: float
    extra_path: str = ""
    spins: bool = False
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


EventKind = Literal["started", "step", "answer", "raised", "died", "timed_out", "out_of_time", "skipped", "given_up"]


@dataclass(frozen=True)
class Event:
    """An event of a job's item; `answer` is a document if it was measured, otherwise `reason` is set.

    The `answer` of a "step" is the progress of a long item. "timed_out": it hung on any machine. "out_of_time": twice
    the machine may have been too busy. "skipped": it shares a feature with lost items. "given_up": there were too many
    losses.
    """

    job: str
    item: str
    kind: EventKind
    answer: Any = None
    reason: str = ""


class Worker(Process):
    """One interpreter working on the items of a job; its messages arrive in a queue as (worker, document or None)."""

    def __init__(
        self,
        python: str,
        job: Job,
        folder: str,
        messages: "queue.Queue[tuple[Worker, Any]]",
        server: ForkServer | None = None,
    ) -> None:
        """Start the interpreter, or have `server` fork it. Raises `BadUsage` if it cannot be started."""
        self.job, self._messages, self.server = job, messages, server
        super().__init__(python, make_arguments("worker"), dict(make_environment(job, folder)))

    def _open(
        self, python: str, arguments: Sequence[str], environment: Mapping[str, str] | None, folder: str | None
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        if self.server is not None:
            return self.server.fork()
        return super()._open(python, arguments, environment, folder)

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._send_job, self._read_messages, *super()._stream_handlers()]

    def _send_job(self) -> None:
        """Send the job's message, and keep standard input open: its end shows the worker that we have ended."""
        self.send({**self.job.message, "items": self.job.items})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message as a line of JSON; one that has ended gets none."""
        line = json.dumps(message).encode() + b"\n"
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


@dataclass(eq=False)
class _Work:
    """The rest of a job; `retries` are those of its items that ran out of time before."""

    job: Job
    items: list[str]
    retries: tuple[str, ...] = ()


@dataclass
class _RunningWorker:
    """A worker with its work, and the deadline of its current step."""

    worker: Worker
    work: _Work
    items: tuple[str, ...]  # the items that it was given
    allowed: float  # seconds
    current_item: str = ""
    is_spoiled: bool = False  # whether an item lost its device, so that it must end
    ready: bool = False
    began: float = field(default_factory=time.monotonic)
    sample: CpuSample | None = None  # taken after half of the time

    @property
    def deadline(self) -> float:
        return self.began + self.allowed

    def begin(self, seconds: float) -> None:
        """Allow `seconds` from now on."""
        self.began, self.allowed, self.sample = time.monotonic(), seconds, None

    def sample_halfway(self) -> None:
        """Read its processor time once, after half of its time."""
        if self.sample is None and time.monotonic() > self.began + self.allowed / 2:
            self.sample = sample_cpu([self.worker.pid])


@dataclass
class Pool:
    """Runs jobs with up to `slots` workers at once; `device` is the first ready worker's description of it."""

    python: str
    slots: int
    device: dict[str, Any] = field(default_factory=dict)
    _folder: str = ""
    _servers: "dict[Base, ForkServer]" = field(default_factory=dict)

    @contextlib.contextmanager
    def prepare(self, *jobs: Job) -> Iterator[None]:
        """Import the modules of jobs like these while the caller plans them; each `run` in the block forks from it."""
        with scratch_folder() as self._folder:
            try:
                self.start_servers(make_base(job, self._folder) for job in jobs)
                yield
            finally:
                kill_all()
                self._folder, self._servers = "", {}

    def start_servers(self, bases: "Iterable[Base]") -> None:
        """Start the processes from which workers are forked, if the system can."""
        for base in bases:
            if fork_server.IS_SUPPORTED and base not in self._servers:
                environment, imports = base
                arguments = make_arguments("fork_server", *imports)
                self._servers[base] = ForkServer(self.python, arguments, dict(environment))

    def run(
        self, jobs: Sequence[Job], on_event: Callable[[Event], None], until: float | None = None
    ) -> tuple[str, ...]:
        """Run every job, passing each event to `on_event`, and return the items not reached at `until`.

        `until` is a time.monotonic() value; an item is named "job item". No worker outlives this function, even after
        an interrupt. Raises `Unanswered` if a worker finds no device.
        """
        with contextlib.nullcontext(self._folder) if self._folder else scratch_folder() as folder:
            try:
                return _PoolRun(self, jobs, on_event, until, folder).run()
            finally:
                kill_all(self._servers.values() if self._folder else ())


class _PoolRun:
    """One run of a pool: the waiting work, the current work, and the work to try again afterwards."""

    def __init__(
        self, pool: Pool, jobs: Sequence[Job], on_event: Callable[[Event], None], until: float | None, folder: str
    ) -> None:
        self.pool, self.on_event, self.until, self.folder = pool, on_event, until, folder
        self.waiting = [_Work(job, list(job.items)) for job in jobs if job.items]
        self.running: list[_RunningWorker] = []
        shared = Counter(make_base(job, folder) for job in jobs if job.imports)
        pool.start_servers(base for base, count in shared.items() if count > 1)
        self.parked: list[_Work] = []  # work of which all remaining items will be skipped, as far as known
        self.losses: dict[str, Losses] = {}  # by the job's name
        for job in jobs:
            self.losses.setdefault(job.name, Losses()).add_job(job.features)
        self.late: dict[int, _Work] = {}  # by the job's id
        self.messages: queue.Queue[tuple[Worker, Any]] = queue.Queue()

    def run(self) -> tuple[str, ...]:
        self._work_off(self.pool.slots)
        self.waiting += self.late.values()
        if self.late and not self._is_over():
            for losses in self.losses.values():
                losses.forgive()
            self._work_off(1)
        self._skip_parked()
        return tuple(self._iter_unreached())

    def _work_off(self, slots: int) -> None:
        while (self.waiting or self.running) and not self._is_over():
            while self.waiting and len(self.running) < slots:
                self._start_worker(self.waiting.pop(0))
            if self.running:
                self._poll_workers()
            else:
                self._unpark()  # later survivors may rule out some explanations

    def _unpark(self) -> None:
        """Queue parked work again if one of its items should be run after all."""
        for losses in self.losses.values():
            losses.update()
        revived = [work for work in self.parked if self._choose_items(work)]
        self.parked = [work for work in self.parked if work not in revived]
        self.waiting += revived

    def _choose_items(self, work: _Work) -> tuple[str, ...]:
        """Return the items of a work to run, in order, without those that share the lost items' features."""
        losses = self.losses[work.job.name]
        return tuple(losses.order(item for item in work.items if not losses.reason_to_skip(item)))

    def _skip_parked(self) -> None:
        """Report the items that are finally skipped."""
        for work in self.parked:
            for item in list(work.items):
                if reason := self.losses[work.job.name].reason_to_skip(item):
                    self._report(work, [item], "skipped", f"skipped: {reason}")
        self.waiting += self.parked  # except reported items: no time was left for them after all
        self.parked = []

    def _is_over(self) -> bool:
        return self.until is not None and time.monotonic() > self.until

    def _iter_unreached(self) -> Iterator[str]:
        """Yield the items that were not reached, and report those that were not tried again."""
        for work in (*(running.work for running in self.running), *self.waiting):
            for item in work.items:
                if item in work.retries:
                    self.on_event(Event(work.job.name, item, "out_of_time", reason=NO_TIME_LEFT))
                else:
                    yield f"{work.job.name} {item}"

    def _start_worker(self, work: _Work) -> None:
        items = self._choose_items(work)
        if not items:
            self.parked.append(work)
            return
        rest_of_job = replace(work.job, message={**work.job.message, "folder": self.folder}, items=items)
        server = self.pool._servers.get(make_base(work.job, self.folder))
        worker = Worker(self.pool.python, rest_of_job, self.folder, self.messages, server)
        self.running.append(_RunningWorker(worker, work, items, START_SECONDS))

    def _poll_workers(self) -> None:
        """Handle the messages that arrive within one poll, and stop the workers whose deadline has passed."""
        with contextlib.suppress(queue.Empty):
            worker, document = self.messages.get(timeout=POLL_SECONDS)
            sender = next((running for running in self.running if running.worker is worker), None)
            if sender is not None:
                self._handle_message(sender, document)
        interrupts.raise_if_interrupted()
        for running in list(self.running):
            running.sample_halfway()
            if time.monotonic() > running.deadline:
                self._record_timeout(running)

    def _handle_message(self, sender: _RunningWorker, document: Any) -> None:
        work, job = sender.work, sender.work.job
        if document is not None and not isinstance(document, dict):
            return  # a backend wrote to our channel
        if document is None:
            if any(item in work.items for item in sender.items):
                self._record_death(sender)
            else:
                self._stop(sender)
                self._queue(work)
            return
        if "unanswered" in document:
            raise Unanswered(document["unanswered"])
        if "device" in document:
            sender.ready = True
            self.pool.device = self.pool.device or document["device"]
            sender.begin(job.seconds)
        elif "started" in document:
            sender.current_item, sender.ready = document["started"], True
            sender.begin(job.seconds)
            self.on_event(Event(job.name, sender.current_item, "started"))
        elif "step" in document and sender.current_item:
            sender.begin(job.seconds)
            self.on_event(Event(job.name, sender.current_item, "step", document))
        elif "waiting" in document:
            sender.begin(job.seconds)
        elif "more" in document:
            self._hand_on(sender)
        elif "answer" in document and document.get("item") in work.items:
            work.items.remove(document["item"])
            sender.current_item = ""
            sender.begin(job.seconds)
            if document.get("spoiled"):
                sender.is_spoiled = True
                self.losses[job.name].record_loss(document["item"], "died")
            elif document.get("survived", True):
                self.losses[job.name].survived.append(document["item"])
            self.on_event(Event(job.name, document["item"], "answer", document["answer"]))

    def _hand_on(self, sender: _RunningWorker) -> None:
        """Give a worker that is done the next work of the same name; without any it will end."""
        self._queue(sender.work)
        sender.work = replace(sender.work, items=[])  # of this one nothing is left to queue again when it ends
        while following := next((work for work in self.waiting if work.job.name == sender.work.job.name), None):
            self.waiting.remove(following)
            if items := self._choose_items(following):
                sender.work, sender.items, sender.current_item = following, items, ""
                sender.begin(following.job.seconds)
                return sender.worker.send({**following.job.message, "folder": self.folder, "items": items})
            self.parked.append(following)
        return sender.worker.send({})

    def _record_death(self, lost: _RunningWorker) -> None:
        """Report the item that was lost with its worker, and queue the others again."""
        reason = self._stop(lost)
        if not lost.ready and lost.worker.server is not None:  # on its own it may start, or say why not
            self.pool._servers.pop(make_base(lost.work.job, self.folder), None)
            self._queue(lost.work)
            return
        if not lost.ready:
            self._report(lost.work, list(lost.work.items), "died", f"the worker did not start: {reason}")
            return
        if not lost.is_spoiled:  # otherwise the loss is already recorded
            self.losses[lost.work.job.name].record_loss(lost.current_item, "died")
        if lost.current_item:  # otherwise it ended between two items on its own, and no item is at fault
            self._report(lost.work, [lost.current_item], "died", reason)
        self._go_on(lost.work, reason)

    def _record_timeout(self, lost: _RunningWorker) -> None:
        """Report an item that hangs or ran out of time twice; otherwise plan to try it again."""
        use = compare_samples(lost.sample, sample_cpu([lost.worker.pid]))
        self._stop(lost)
        work = lost.work
        items = ([lost.current_item] if lost.current_item else []) if lost.ready else list(work.items)
        losses = self.losses[work.job.name]
        if items and use.activity != "asleep" and not work.retries:
            self._try_later(work, items)
            if lost.ready:
                losses.record_loss("", "hung")
                self._go_on(work, "")
            return
        kind, reason = describe_timeout(use, lost.allowed, bool(work.retries))
        losses.record_loss(lost.current_item if kind == "timed_out" else "", "hung")
        self._report(work, items, kind, reason if lost.ready else f"the worker did not start: {reason}")
        if work.retries and items:  # limits the cost of a backend that never ends
            self._report(work, list(work.items), "out_of_time", f"not tried again: {items[0]} ran out of time twice")
        elif work.items:
            self._go_on(work, reason)

    def _stop(self, lost: _RunningWorker) -> str:
        """Stop a worker, and return in a few words how it ended."""
        self.running.remove(lost)
        return lost.worker.stop()

    def _report(self, work: _Work, items: Sequence[str], kind: EventKind, reason: str) -> None:
        for item in items:
            work.items.remove(item)
            self.on_event(Event(work.job.name, item, kind, reason=reason))

    def _try_later(self, work: _Work, items: Sequence[str]) -> None:
        """Set aside items that ran out of time, to try them with more time after all others."""
        slower = replace(work.job, seconds=work.job.seconds * RETRY_FACTOR)
        late = self.late.setdefault(id(work.job), _Work(slower, []))
        late.items += items
        late.retries += tuple(items)
        work.items[:] = [item for item in work.items if item not in items]

    def _queue(self, work: _Work) -> None:
        """Queue the rest of a work first, with all works of its name whose losses have a new explanation."""
        if work.items:
            self.waiting.insert(0, work)
        self._unpark()

    def _go_on(self, work: _Work, reason: str) -> None:
        """Queue the rest of a work that lost an item; after too many losses give it up, or try it later."""
        losses = self.losses[work.job.name]
        if not losses.is_over:
            self._queue(work)
        elif id(work.job) in self.late:
            self.late[id(work.job)].items += work.items
        else:
            self._give_up(work.job.name, work, f"given up after {losses.workers} lost workers: {reason}")

    def _give_up(self, name: str, work: _Work, reason: str) -> None:
        """Report the items of a work, and of the waiting works of the same name, as given up."""
        others = [other for other in (*self.waiting, *self.parked) if other.job.name == name]
        self.waiting = [other for other in self.waiting if other not in others]
        self.parked = [other for other in self.parked if other not in others]
        for given_up in (work, *others):
            for item in list(given_up.items):
                skipped = self.losses[name].reason_to_skip(item)
                kind: EventKind = "skipped" if skipped else "given_up"
                self._report(given_up, [item], kind, f"skipped: {skipped}" if skipped else reason)


def describe_timeout(use: CpuUse, seconds: float, is_retry: bool) -> tuple[EventKind, str]:
    """Return the outcome of an item without an answer within `seconds`, and the reason: it hangs, or unknown."""
    activity = f"; {use.describe()}" if use.describe() else ""
    if use.activity == "asleep" or (use.activity == "computing" and is_retry):
        alone = " when it ran alone" if is_retry else ""
        return "timed_out", f"no answer within {seconds:g} s{alone}; it was stopped{activity}"
    times = f"twice, the second time alone, after {seconds:g} s" if is_retry else f"after {seconds:g} s"
    return "out_of_time", f"ran out of time {times}: not judged{activity}; --timeout allows more"


Environment: TypeAlias = tuple[tuple[str, str], ...]
Base: TypeAlias = tuple[Environment, tuple[str, ...]]  # what workers that are forked from one process have in common


def make_base(job: Job, folder: str) -> Base:
    """Return the variables and the imports of a job's worker."""
    return make_environment(job, folder), job.imports


def make_arguments(role: Literal["worker", "fork_server"], *arguments: str) -> list[str]:
    """Return the arguments with which an interpreter runs a module of `attncheck.workers.inside`."""
    return ["-c", BOOTSTRAP, str(PACKAGE_FOLDER), role, *arguments]


def make_environment(job: Job, folder: str) -> Environment:
    """Return the variables of a job's worker, except the inherited ones."""
    environment = {**CHILD_ENVIRONMENT, **cache_environment(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= overlay_environment(job.extra_path)
    if "threads" in job.message:
        environment |= thread_environment(int(job.message["threads"]), job.spins, os.environ)
    return tuple(environment.items())


def cache_environment(folder: str) -> dict[str, str]:
    """Return where compilers cache compiled files: in the run's own `folder`, not in the user's folders.

    All workers of a run share it, so that each finds what another compiled. It is removed with the folder. Compiling
    the C++ headers in advance takes 7 s and gains nothing for the few kernels of a run.
    """
    folders = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TMPDIR": folder,
    }
    return {**folders, "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


def overlay_environment(extra_path: str) -> dict[str, str]:
    """Return the variables that make a Python import from `extra_path` first; empty without one."""
    if not extra_path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (extra_path, os.environ.get("PYTHONPATH"))))}


def default_slots(gpu: bool) -> int:
    """Return the number of workers at once, one per core: up to 16 share a GPU, up to eight the CPU."""
    return min(16 if gpu else 8, count_cores())
