"""Groups of ranks that measure many items together, under PyTorch's elastic launcher or an external one.

If no launcher started us as a rank, we start the ranks of this host: `python -m torch.distributed.run`, whose own store
picks a free port. Under torchrun or srun we are already one rank of a group, and start one child.

Ranks answer with files, written under another name and renamed: the current item, its answer, errors. Every item has a
deadline. If one rank raises, dies or hangs, its peers wait in a collective forever. The whole group is therefore
stopped, the first rank at fault is named with its last line on standard error, and another group continues. If an item
ran out of time while its ranks were active, it is tried once more with more time, after all others.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Following, Unanswered
from attncheck.workers.launcher_env import RankEnv
from attncheck.workers.losses import MAX_LOSSES
from attncheck.workers.pool import (
    NO_TIME_LEFT,
    PACKAGE_FOLDER,
    RETRY_FACTOR,
    Event,
    EventKind,
    cache_environment,
    describe_timeout,
    overlay_environment,
)
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, kill_all
from attncheck.workers.processor_time import CpuSample, CpuUse, compare_samples, read_process_state, sample_cpu
from attncheck.workers.processors import thread_environment
from attncheck.workers.scratch import scratch_folder
from attncheck.workers.stacks import collect_stacks, describe_crash, innermost_frame, is_waiting_for_peers

POLL_SECONDS = 0.05  # between two checks of the folder
RENDEZVOUS_SECONDS = 120.0  # instead of NCCL's ten or gloo's thirty minutes
IMPORT_SECONDS = 120.0  # for importing torch on all ranks at once, from a cold disk, before they meet
MEETING_GRACE_SECONDS = 5.0  # for ranks that did not meet to report it themselves
GRACE_SECONDS = 1.5  # for the faults of other ranks, and the launcher's log line about a death
STDERR_TAIL = 32 << 10  # bytes
POLLING_SHARE = 0.2  # a rank that waits for its peers uses at most this share of a processor
RANK_SCRIPT = """\
import os, sys
sys.path[:] = [entry for entry in sys.path if entry and entry != os.path.dirname(os.path.abspath(__file__))]
if sys.version_info < (3, 10):
    sys.exit("attncheck measures with Python 3.10 or newer; this is %d.%d" % sys.version_info[:2])
import importlib.util
folder, package, entry = sys.argv[1:4]
spec = importlib.util.spec_from_file_location(
    "attncheck", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
module = sys.modules["attncheck"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from attncheck.workers.inside.worker import load_task
load_task(entry)(folder)
"""
# torch/distributed/elastic: the agent's log line, and the summary of torchrun (errors/__init__.py, `_format_failure`).
_AGENT_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_ROOT_CAUSE = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")

# gloo's and NCCL's errors on a rank after its peer has ended; the rank is not at fault.
_PEER_GONE = re.compile(r"closed by peer|reset by peer|remote process exited|ncclRemoteError|connection was closed")

_sequence = itertools.count()  # numbers the groups that this process starts


@dataclass(frozen=True)
class RankJob:
    """Work for a group: its start message, its items as (backend, name), the seconds for each item.

    `entry` is the "module:function" that a rank runs on its folder; it calls the function in the message's "task".
    """

    world_size: int
    entry: str
    message: Mapping[str, Any]
    items: tuple[tuple[str, str], ...]
    seconds: float
    rendezvous_seconds: float = RENDEZVOUS_SECONDS
    extra_path: str = ""  # a folder of packages that its interpreters import from before the environment's own
    spins: bool = False  # whether its threads spin while they wait, as in a training job, which timings need


@dataclass
class RankRunner:
    """Runs jobs one after another; `device` is rank 0's description of its device, `facts` those of every rank."""

    python: str
    rank_env: RankEnv | None = None
    device: dict[str, Any] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)

    def run(self, job: RankJob, on_event: Callable[[Event], None], until: float | None = None) -> tuple[str, ...]:
        """Run a job, passing each event to `on_event`, and return the items not reached at `until` (time.monotonic()).

        No process outlives this function. Raises `Unanswered` if the ranks cannot start or meet, or find no device.
        """
        if self.rank_env is not None and self.rank_env.world_size != job.world_size:
            raise BadUsage(
                f"the launcher started {self.rank_env.world_size} ranks, but a ring of {job.world_size} needs "
                f"{job.world_size}"
            )
        late: list[tuple[str, str]] = []
        unreached = self._run_items(job, list(job.items), late, on_event, until)
        if not late:
            return unreached
        slower = replace(job, seconds=job.seconds * RETRY_FACTOR)
        not_tried = set(self._run_items(slower, list(late), None, on_event, until))
        for item in late:
            if " ".join(item) in not_tried:
                on_event(Event(item[0], item[1], "out_of_time", reason=NO_TIME_LEFT))
        return unreached

    def _run_items(
        self,
        job: RankJob,
        remaining: list[tuple[str, str]],
        late: list[tuple[str, str]] | None,
        on_event: Callable[[Event], None],
        until: float | None,
    ) -> tuple[str, ...]:
        """Run items in one group after another; items that ran out of time are added to `late`, if given."""
        losses = Counter[str]()
        while remaining and (until is None or time.monotonic() < until):
            with scratch_folder() as folder:
                try:
                    group = _RankGroup(self, job, remaining, late, folder, on_event, until)
                    if self.is_follower:
                        group.wait_as_follower()
                        return ()
                    lost_backend = group.collect_answers()
                finally:
                    kill_all()
            if lost_backend is None:
                continue  # `remaining` is the rest of the whole run's deadline
            losses[lost_backend] += 1
            self._give_up_items(remaining, losses, on_event, late)
        return tuple(" ".join(item) for item in remaining)

    @property
    def is_follower(self) -> bool:
        """Whether we are a rank of an external launcher other than rank 0, which reports for all."""
        return self.rank_env is not None and self.rank_env.rank > 0

    def _give_up_items(
        self,
        remaining: list[tuple[str, str]],
        losses: Counter[str],
        on_event: Callable[[Event], None],
        late: list[tuple[str, str]] | None,
    ) -> None:
        """Report items that are given up: their backend lost too many, or the group cannot be restarted.

        If some of those losses only ran out of time, the rest of the backend's items is tried later with them.
        """
        late_backends = {backend for backend, _ in late or ()}
        for item in list(remaining):
            reason = ""
            if self.rank_env is not None:
                reason = "given up: an external launcher does not restart the group after an earlier case lost it"
            elif losses[item[0]] >= MAX_LOSSES and late is not None and item[0] in late_backends:
                remaining.remove(item)
                late.append(item)
            elif losses[item[0]] >= MAX_LOSSES:
                reason = f"given up after {MAX_LOSSES} lost groups"
            if reason:
                remaining.remove(item)
                on_event(Event(item[0], item[1], "given_up", reason=reason))


class _RankGroup:
    """One group of rank processes, from start to end, from its parent's view."""

    def __init__(
        self,
        runner: RankRunner,
        job: RankJob,
        remaining: list[tuple[str, str]],
        late: list[tuple[str, str]] | None,
        folder: str,
        on_event: Callable[[Event], None],
        until: float | None,
    ) -> None:
        self.runner, self.job, self.remaining, self.on_event, self.until = runner, job, remaining, on_event, until
        self.items, self.late = tuple(remaining), late
        self.began, self.samples = (
            time.monotonic(),
            dict[int, CpuSample](),
        )  # of ranks, taken after half of the time
        self.folder = Path(folder)
        # Ranks with files in our folder.
        self.local_ranks = job.world_size if runner.rank_env is None else 1
        self.current_item: tuple[str, str] | None = None
        self.ready = False
        self.meeting_ranks = 0  # ranks of this host that have imported torch and wait for the others
        self.handled_files: set[str] = set()
        self.deadline = time.monotonic() + IMPORT_SECONDS + job.rendezvous_seconds
        self.process = self._start_process()

    def _start_process(self) -> Process:
        document = {**self.job.message, "items": self.items, "seconds": self.job.seconds}
        document |= {"rendezvous_seconds": self.job.rendezvous_seconds, "world_size": self.job.world_size}
        document |= {"joined": self.runner.rank_env is not None, "sequence": next(_sequence)}
        (self.folder / "job.json").write_text(json.dumps(document))
        script = self.folder / "attncheck_rank.py"
        script.write_text(RANK_SCRIPT)
        arguments = [str(script), str(self.folder), str(PACKAGE_FOLDER), self.job.entry]
        environment = {
            **CHILD_ENVIRONMENT,
            **cache_environment(str(self.folder)),
            **overlay_environment(self.job.extra_path),
        }
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment |= thread_environment(int(self.job.message["threads"]), self.job.spins, os.environ)
        rank_env = self.runner.rank_env
        if rank_env is not None:
            return Process(self.runner.python, arguments, {**environment, **rank_env.environment}, str(self.folder))
        launcher = [
            *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={self.job.world_size}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--max-restarts=0", "--monitor-interval=0.1"),
            *(f"--rdzv-id={self.folder.name}", f"--log-dir={self.folder}/logs", "--redirects=3"),
        ]
        return Process(self.runner.python, [*launcher, *arguments], environment, str(self.folder))

    def wait_as_follower(self) -> None:
        """Wait while our single rank works. Raises `Following` with the reason if it fails.

        This is not our error: a launcher ends every rank when one ends with an error, and rank 0 must still report.
        """
        while self.process.returncode is None:
            time.sleep(POLL_SECONDS)
            interrupts.raise_if_interrupted()
            faults = self._read_faults()
            if faults:
                # Rank 0 reads it from the store before its connection breaks.
                self.process.wait_for_exit(GRACE_SECONDS)
                raise Following(self._describe_fault(faults)[1])
            if self.until is not None and time.monotonic() > self.until + self.job.seconds:
                return
        if self.process.returncode:
            raise Following(self._describe_fault({})[1])

    def collect_answers(self) -> str | None:
        """Handle messages until all items are answered or time is up; return the backend of a lost item."""
        while self.remaining:
            time.sleep(POLL_SECONDS)
            interrupts.raise_if_interrupted()
            self._read_messages()
            if not self.remaining:
                break
            faults = self._read_faults()
            if faults or self.process.returncode is not None:
                return self._record_loss(faults)
            self._sample_halfway()
            if time.monotonic() > self.deadline:
                return self._record_loss({})
            if self.until is not None and time.monotonic() > self.until:
                return None
        self._wait_for_exit()
        return None

    def _wait_for_exit(self) -> None:
        """Wait a few seconds for the ranks to end on their own."""
        self.process.wait_for_exit(5.0)

    def _read_messages(self) -> None:
        """Handle the new messages of rank 0, or of our only rank."""
        for path in sorted(self.folder.glob("said-*.json")):
            if path.name in self.handled_files:
                continue
            self.handled_files.add(path.name)
            document = _read_json(path)
            path.unlink(missing_ok=True)
            self._handle_message(document)

    def _handle_message(self, document: dict[str, Any]) -> None:
        if "meeting" in document:
            self.meeting_ranks += 1
            if self.meeting_ranks == self.local_ranks and not self.ready:
                self.deadline = time.monotonic() + self.job.rendezvous_seconds + MEETING_GRACE_SECONDS
            return
        self.began, self.samples = time.monotonic(), {}
        self.deadline = self.began + self.job.seconds
        if "unanswered" in document:
            raise Unanswered(document["unanswered"])
        if "ready" in document:
            self.ready = True
            self.runner.device = self.runner.device or document["ready"]
            self.runner.facts = document["facts"]
        elif "started" in document:
            self.current_item = self.items[document["started"]]
            self.on_event(Event(self.current_item[0], self.current_item[1], "started"))
        elif "item" in document:
            item = self.items[document["item"]]
            self.remaining.remove(item)
            self.current_item = None
            self.on_event(Event(item[0], item[1], "answer", document["answer"]))

    def _read_faults(self) -> dict[int, dict[str, Any]]:
        """Return the faults that ranks have written, by rank."""
        return {
            document["rank"]: document for document in map(_read_json, self.folder.glob("fault-*.json")) if document
        }

    def _record_loss(self, faults: dict[int, dict[str, Any]]) -> str:
        """Report the item that was lost with the group, naming the first rank at fault. Return the item's backend."""
        timed_out = not faults and self.process.returncode is None
        if not timed_out:
            until = time.monotonic() + GRACE_SECONDS
            while (
                not self.process.wait_for_exit(POLL_SECONDS)
                and len(faults) < self.local_ranks
                and time.monotonic() < until
            ):
                faults = self._read_faults()
            self._read_messages()
            faults = self._read_faults()
        kind: EventKind
        kind, reason = self._describe_timeout() if timed_out else self._describe_fault(faults)
        self.process.kill()
        if not self.ready:
            raise Unanswered(f"the ring of {self.job.world_size} did not start: {reason}")
        if self.current_item is None:  # lost between two items: the next one had just been started
            self.current_item = self.remaining[0]
        item = self.current_item
        self.remaining.remove(item)
        if kind == "out_of_time" and self.late is not None:
            self.late.append(item)
            return item[0]
        self.on_event(Event(item[0], item[1], kind, reason=reason))
        return item[0]

    def _describe_fault(self, faults: dict[int, dict[str, Any]]) -> tuple[EventKind, str]:
        """Return the kind of event of the first rank at fault, and its last line on standard error."""
        died = {rank: code for rank, code in self._exit_statuses().items() if rank not in faults}
        if died:
            rank = min(died)
            how = signal.Signals(-died[rank]).name if died[rank] < 0 else f"exit status {died[rank]}"
            return "died", f"rank {rank} ended with {how}: {self._last_stderr_line(rank)}"
        if not faults:
            return "died", f"the launcher ended: {_last_line(self.process.stderr)}"
        own_faults = {rank: fault for rank, fault in faults.items() if not _PEER_GONE.search(fault["message"])}
        ended = [rank for rank in self._ended_ranks() if rank not in faults]
        if not own_faults and ended:
            return "died", f"rank {ended[0]} ended on its own, before its peers: {self._last_stderr_line(ended[0])}"
        if not own_faults:
            return "died", f"a peer of rank {min(faults)} disconnected; its last output is on its own standard error"
        first = min(own_faults.values(), key=lambda fault: float(fault["at"]))
        same_message = [fault for fault in faults.values() if fault["message"] == first["message"]]
        culprit = "every rank" if len(same_message) == self.job.world_size > 1 else f"rank {first['rank']}"
        return "raised", f"{culprit}: {first['message']}"

    def _exit_statuses(self) -> dict[int, int]:
        """Return the exit status of each rank that ended on its own, if the launcher reports it."""
        if self.runner.rank_env is not None:
            code = self.process.returncode
            return {self.runner.rank_env.rank: code} if code not in (None, 0) else {}
        text = self.process.stderr
        statuses = {int(rank): int(code) for rank, code in _ROOT_CAUSE.findall(text)[-1:]}
        return statuses or {int(rank): int(code) for code, rank in _AGENT_FAILURE.findall(text)[:1]}

    def _sample_halfway(self) -> None:
        """Read the ranks' processor time once, after half of the time."""
        if not self.samples and self.ready and time.monotonic() > (self.began + self.deadline) / 2:
            self.samples = self._sample_ranks()

    def _sample_ranks(self) -> dict[int, CpuSample]:
        states = [_read_json(path) for path in self.folder.glob("rank-*.json")]
        samples = {int(state["rank"]): sample_cpu([int(state["pid"])]) for state in states if state}
        return {rank: sample for rank, sample in samples.items() if sample is not None}

    def _describe_timeout(self) -> tuple[EventKind, str]:
        """Return the outcome of an item that ran out of time, and why: which rank hangs, or a busy machine."""
        ended = self._ended_ranks()
        if ended:
            last_line = self._last_stderr_line(ended[0])
            return (
                "timed_out",
                f"no answer: rank {ended[0]} ended on its own, its peers wait for it: {last_line}",
            )
        latest = self._sample_ranks()
        stacks = collect_stacks(self.folder)
        use = self._find_busiest_use(latest, stacks)
        is_retry = self.late is None
        kind, reason = describe_timeout(use, self.job.seconds, is_retry)
        # Under an external launcher only our own rank is visible, and there is no second attempt.
        if kind == "timed_out" or self.runner.rank_env is not None or not self.ready:
            return "timed_out", self._describe_hang(stacks)
        return kind, reason

    def _find_busiest_use(self, latest: dict[int, CpuSample], stacks: dict[int, str]) -> CpuUse:
        """Return the activity of the busiest rank; one that only polls for its peers counts as asleep."""
        uses = []
        for rank, sample in latest.items():
            use = compare_samples(self.samples.get(rank), sample)
            is_polling = use.activity == "starved" and use.seconds < POLLING_SHARE * use.elapsed
            if is_polling and is_waiting_for_peers(stacks.get(rank, "")):
                use = use._replace(activity="asleep")
            uses.append(use)
        if len(uses) < self.local_ranks:
            return CpuUse("unknown")
        by_grade = {"asleep": 0, "unknown": 1, "starved": 2, "computing": 3}
        return max(uses, key=lambda use: (by_grade[use.activity], use.seconds))

    def _describe_hang(self, stacks: dict[int, str]) -> str:
        """Return which rank hangs, by the stacks."""
        seconds = self.job.seconds if self.ready else self.job.rendezvous_seconds
        if not self.ready and self.meeting_ranks < self.local_ranks:
            seconds += IMPORT_SECONDS
        summary = f"no answer within {seconds:g} s; the group was stopped"
        without_stack = [rank for rank in range(self.local_ranks) if rank not in stacks] if stacks else []
        if len(without_stack) == 1:
            return f"{summary}: rank {without_stack[0]} reported no stack (stopped, or stuck in the kernel)"
        culprits = {rank: stack for rank, stack in stacks.items() if not is_waiting_for_peers(stack)}
        if culprits and len(culprits) < max(2, len(stacks)):
            rank, stack = min(culprits.items())
            return f"{summary}: rank {rank} hangs in {innermost_frame(stack)}, its peers wait for it"
        if stacks and not culprits and self.runner.rank_env is not None:
            return f"{summary}: rank 0 waits for its peers in {innermost_frame(stacks[min(stacks)])}"
        if stacks and not culprits:
            return f"{summary}: every rank waits for another, rank 0 in {innermost_frame(stacks[min(stacks)])}"
        return summary

    def _ended_ranks(self) -> list[int]:
        """Return the ranks of this host whose process has ended, as far as /proc shows."""
        states = [_read_json(path) for path in sorted(self.folder.glob("rank-*.json"))]
        # a zombie that is not yet reaped counts as ended
        return [int(state["rank"]) for state in states if state and read_process_state(int(state["pid"])) in "ZX"]

    def _last_stderr_line(self, rank: int) -> str:
        """Return a rank's last line on standard error."""
        paths = sorted(self.folder.glob(f"logs/*/attempt_0/{rank}/stderr.log"))
        if not paths:
            return _last_line(self.process.stderr)
        with paths[-1].open("rb") as stream:
            stream.seek(max(0, paths[-1].stat().st_size - STDERR_TAIL))
            return _last_line(stream.read().decode("utf-8", "replace"))


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict):
            return document
    return {}


def _last_line(text: str) -> str:
    """Return the last line, with Python's position when a fatal signal hit."""
    where, last_line = describe_crash(text)
    return ", ".join(filter(None, (f"died in {where}" if where else "", last_line))) or "no message"
