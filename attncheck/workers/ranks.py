"""Ranks: one group of processes that measures many items together, under PyTorch's elastic launcher or inside one.

Where nobody started us as a rank, we start the ranks of this host ourselves: `python -m torch.distributed.run`, whose
own store picks a free port. Under torchrun or srun we are one rank of a group already, and start our one child.

Ranks answer by files, written under another name and renamed: what they are at, what they answered, what went wrong.
Every item has a deadline. When one rank raises, dies or hangs, its peers wait in a collective for good: the whole
group is stopped, the first rank at fault is named with its last words, and another group takes up the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attncheck.core import interrupts
from attncheck.core.errors import BadUsage, Following, Unanswered
from attncheck.workers.launcher_env import RankEnv
from attncheck.workers.pool import LOSSES, PACKAGE, Event, beside
from attncheck.workers.process import CHILD_ENVIRONMENT, Process, stop_all
from attncheck.workers.stacks import waiting_for_peers

TICK = 0.05  # seconds between looks at the folder
RENDEZVOUS_SECONDS = 120.0  # never NCCL's ten or gloo's thirty minutes
IMPORT_SECONDS = 120.0  # importing torch on every rank at once, from a cold disk, before they meet
GRACE = 1.5  # seconds in which the other ranks' faults, and the launcher's word on a death, are awaited
LAST_WORDS = 4 << 10
SCRIPT = """\
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
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_ROOT = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")

# What gloo and NCCL say to a rank whose peer is gone: no fault of its own.
_PEER_GONE = re.compile(r"closed by peer|reset by peer|remote process exited|ncclRemoteError|connection was closed")

_sequence = itertools.count()  # of the groups that this process starts

Fault = Literal["raised", "died", "timed_out"]


@dataclass(frozen=True)
class RanksJob:
    """Work for a group: the message it starts with, its items as (backend, name), seconds for each of them.

    `entry` is the "module:function" that a rank runs on its folder; the message's "task" is what that calls in turn.
    """

    world_size: int
    entry: str
    message: Mapping[str, Any]
    items: tuple[tuple[str, str], ...]
    seconds: float
    rendezvous: float = RENDEZVOUS_SECONDS
    extra_path: str = ""  # a folder of packages that its interpreters find before the environment's


@dataclass
class Ranks:
    """Runs jobs one after another. `device` is what rank 0 says of its device, `facts` what all ranks say of theirs."""

    python: str
    place: RankEnv | None = None
    device: dict[str, Any] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)

    def run(self, job: RanksJob, tell: Callable[[Event], None], until: float | None = None) -> tuple[str, ...]:
        """Run a job, telling what happens; stop at `until` (time.monotonic()). Return the items not reached.

        No process outlives this function. Raises `Unanswered` where the ranks cannot start or meet, or find no device.
        """
        if self.place is not None and self.place.world_size != job.world_size:
            raise BadUsage(
                f"the launcher started {self.place.world_size} ranks; a ring of {job.world_size} needs as many"
            )
        left, losses = list(job.items), Counter[str]()
        while left and (until is None or time.monotonic() < until):
            with tempfile.TemporaryDirectory(prefix="attncheck-", ignore_cleanup_errors=True) as folder:
                try:
                    group = _Group(self, job, left, folder, tell, until)
                    if self.follows:
                        group.follow()
                        return ()
                    lost = group.serve()
                finally:
                    stop_all()
            if lost is None:
                continue  # `left` is what the deadline of the whole run left over, or nothing
            losses[lost] += 1
            self._give_up(job, left, losses, tell)
        return tuple(" ".join(item) for item in left)

    @property
    def follows(self) -> bool:
        """Whether we are a rank of a launcher outside that does not report: rank 0 does."""
        return self.place is not None and self.place.rank > 0

    def _give_up(
        self, job: RanksJob, left: list[tuple[str, str]], losses: Counter[str], tell: Callable[[Event], None]
    ) -> None:
        """Tell of items that are not tried any more: their backend lost too many, or the group cannot be restarted."""
        for item in list(left):
            why = ""
            if self.place is not None:
                why = "given up: the launcher outside does not restart the group that an earlier case lost"
            elif losses[item[0]] >= LOSSES:
                why = f"given up after {LOSSES} lost groups"
            if why:
                left.remove(item)
                tell(Event(item[0], item[1], "given_up", reason=why))


class _Group:
    """One life of a group of ranks, seen from outside."""

    def __init__(
        self,
        ranks: Ranks,
        job: RanksJob,
        left: list[tuple[str, str]],
        folder: str,
        tell: Callable[[Event], None],
        until: float | None,
    ) -> None:
        self.ranks, self.job, self.left, self.tell, self.until = ranks, job, left, tell, until
        self.items = tuple(left)
        self.folder = Path(folder)
        self.mine = job.world_size if ranks.place is None else 1  # ranks whose files come to our folder
        self.at: tuple[str, str] | None = None
        self.ready = False
        self.heard: set[str] = set()
        self.deadline = time.monotonic() + IMPORT_SECONDS + job.rendezvous
        self.process = self._start()

    def _start(self) -> Process:
        document = {**self.job.message, "items": self.items, "seconds": self.job.seconds}
        document |= {"rendezvous_seconds": self.job.rendezvous, "world_size": self.job.world_size}
        document |= {"joined": self.ranks.place is not None, "sequence": next(_sequence)}
        (self.folder / "job.json").write_text(json.dumps(document))
        script = self.folder / "attncheck_rank.py"
        script.write_text(SCRIPT)
        words = [str(script), str(self.folder), str(PACKAGE), self.job.entry]
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{self.folder}/inductor",
            "TRITON_CACHE_DIR": f"{self.folder}/triton",
            "TMPDIR": str(self.folder),
        }
        environment = {**CHILD_ENVIRONMENT, **caches, **beside(self.job.extra_path), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        place = self.ranks.place
        if place is not None:
            return Process(self.ranks.python, words, {**environment, **place.environment}, str(self.folder))
        launcher = [
            *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={self.job.world_size}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--max-restarts=0", "--monitor-interval=0.1"),
            *(f"--rdzv-id={self.folder.name}", f"--log-dir={self.folder}/logs", "--redirects=3"),
        ]
        return Process(self.ranks.python, [*launcher, *words], environment, str(self.folder))

    def follow(self) -> None:
        """Let our one rank work until it ends. Raises `Following` with the reason where it fails.

        Not an error of ours: a launcher ends every rank when one ends with an error, and rank 0 has yet to report.
        """
        while self.process.returncode is None:
            time.sleep(TICK)
            interrupts.check()
            faults = self._faults()
            if faults:
                self.process.ended(GRACE)  # rank 0 hears of it through the store, before its connection breaks
                raise Following(self._fault(faults)[1])
            if self.until is not None and time.monotonic() > self.until + self.job.seconds:
                return
        if self.process.returncode:
            raise Following(self._fault({})[1])

    def serve(self) -> str | None:
        """Listen until all items are answered or the time is up (None), or a rank is lost: return its backend."""
        while self.left:
            time.sleep(TICK)
            interrupts.check()
            self._take()
            if not self.left:
                break
            faults = self._faults()
            if faults or self.process.returncode is not None:
                return self._lose(faults)
            if time.monotonic() > self.deadline:
                return self._lose({})
            if self.until is not None and time.monotonic() > self.until:
                return None
        self._settle()
        return None

    def _settle(self) -> None:
        """Let the ranks say goodbye to each other, shortly."""
        self.process.ended(5.0)

    def _take(self) -> None:
        """Take what rank 0, or our one rank, has written since the last look."""
        for path in sorted(self.folder.glob("said-*.json")):
            if path.name in self.heard:
                continue
            self.heard.add(path.name)
            document = _read(path)
            path.unlink(missing_ok=True)
            self._hear(document)

    def _hear(self, document: dict[str, Any]) -> None:
        self.deadline = time.monotonic() + self.job.seconds
        if "unanswered" in document:
            raise Unanswered(document["unanswered"])
        if "ready" in document:
            self.ready = True
            self.ranks.device = self.ranks.device or document["ready"]
            self.ranks.facts = document["facts"]
        elif "started" in document:
            self.at = self.items[document["started"]]
            self.tell(Event(self.at[0], self.at[1], "started"))
        elif "item" in document:
            item = self.items[document["item"]]
            self.left.remove(item)
            self.at = None
            self.tell(Event(item[0], item[1], "answer", document["answer"]))

    def _faults(self) -> dict[int, dict[str, Any]]:
        """Return what ranks say has gone wrong, by rank."""
        return {document["rank"]: document for document in map(_read, self.folder.glob("fault-*.json")) if document}

    def _lose(self, faults: dict[int, dict[str, Any]]) -> str:
        """Tell of the item that was lost with the group, naming the first rank at fault. Return its backend."""
        timed_out = not faults and self.process.returncode is None
        if not timed_out:
            until = time.monotonic() + GRACE
            while not self.process.ended(TICK) and len(faults) < self.mine and time.monotonic() < until:
                faults = self._faults()
            self._take()
            faults = self._faults()
        kind: Fault = "timed_out"
        if timed_out:
            reason = self._hung()
        else:
            kind, reason = self._fault(faults)
        self.process.kill()
        if not self.ready:
            raise Unanswered(f"the ring of {self.job.world_size} did not start: {reason}")
        if self.at is None:  # lost between two items: the next one is the one that was being begun
            self.at = self.left[0]
        item = self.at
        self.left.remove(item)
        self.tell(Event(item[0], item[1], kind, reason=reason))
        return item[0]

    def _fault(self, faults: dict[int, dict[str, Any]]) -> tuple[Fault, str]:
        """Return what happened to the first rank at fault, and its last words."""
        died = {rank: code for rank, code in self._died().items() if rank not in faults}
        if died:
            rank = min(died)
            how = signal.Signals(-died[rank]).name if died[rank] < 0 else f"exit status {died[rank]}"
            return "died", f"rank {rank} ended with {how}: {self._last_words(rank)}"
        if not faults:
            return "died", f"the launcher ended: {_last(self.process.stderr)}"
        own = {rank: fault for rank, fault in faults.items() if not _PEER_GONE.search(fault["message"])}
        gone = [rank for rank in self._gone() if rank not in faults]
        if not own and gone:
            return "died", f"rank {gone[0]} ended by itself, before its peers: {self._last_words(gone[0])}"
        if not own:
            return "died", f"a peer of rank {min(faults)} went away; what it said last is on its own standard error"
        first = min(own.values(), key=lambda fault: float(fault["at"]))
        same = [fault for fault in faults.values() if fault["message"] == first["message"]]
        who = "every rank" if len(same) == self.job.world_size > 1 else f"rank {first['rank']}"
        return "raised", f"{who}: {first['message']}"

    def _died(self) -> dict[int, int]:
        """Return the exit status of ranks that ended by themselves."""
        if self.ranks.place is not None:
            code = self.process.returncode
            return {self.ranks.place.rank: code} if code not in (None, 0) else {}
        text = self.process.stderr
        found = {int(rank): int(code) for rank, code in _ROOT.findall(text)[-1:]}
        return found or {int(rank): int(code) for code, rank in _FAILED.findall(text)[:1]}

    def _hung(self) -> str:
        """Return which rank hangs, as far as the stacks tell."""
        gone = self._gone()
        if gone:
            words = self._last_words(gone[0])
            return f"no answer any more: rank {gone[0]} ended by itself, its peers wait for it: {words}"
        stacks = self._stacks()
        seconds = self.job.seconds if self.ready else IMPORT_SECONDS + self.job.rendezvous
        said = f"no answer within {seconds:g} s; the group was stopped"
        silent = [rank for rank in range(self.mine) if rank not in stacks] if stacks else []
        if len(silent) == 1:
            return f"{said}: rank {silent[0]} does not even say where it is (stopped, or stuck in the kernel)"
        culprits = {rank: stack for rank, stack in stacks.items() if not waiting_for_peers(stack)}
        if culprits and len(culprits) < max(2, len(stacks)):
            rank, stack = min(culprits.items())
            return f"{said}: rank {rank} hangs in {_innermost(stack)}, its peers wait for it"
        if stacks and not culprits and self.ranks.place is not None:
            return f"{said}: rank 0 waits for its peers in {_innermost(stacks[min(stacks)])}"
        if stacks and not culprits:
            return f"{said}: every rank waits for another, rank 0 in {_innermost(stacks[min(stacks)])}"
        return said

    def _gone(self) -> list[int]:
        """Return the ranks of this host whose process has ended, as far as /proc tells."""
        states = [_read(path) for path in sorted(self.folder.glob("rank-*.json"))]
        return [int(state["rank"]) for state in states if state and _ended(int(state["pid"]))]

    def _stacks(self) -> dict[int, str]:
        """Return where the main thread of each rank is, as faulthandler prints it."""
        states = [_read(path) for path in self.folder.glob("rank-*.json")]
        for state in states:
            with contextlib.suppress(ProcessLookupError, PermissionError, KeyError):
                os.kill(state["pid"], signal.SIGUSR1)
        time.sleep(0.5)
        found = {}
        for state in states:
            with contextlib.suppress(OSError, KeyError):
                text = (self.folder / f"stack-{state['rank']}.txt").read_text("utf-8", "replace")
                found[int(state["rank"])] = _thread(text, int(state["thread"]))
        return {rank: stack for rank, stack in found.items() if stack}

    def _last_words(self, rank: int) -> str:
        """Return the last line that a rank wrote to standard error."""
        paths = sorted(self.folder.glob(f"logs/*/attempt_0/{rank}/stderr.log"))
        if not paths:
            return _last(self.process.stderr)
        with paths[-1].open("rb") as stream:
            stream.seek(max(0, paths[-1].stat().st_size - LAST_WORDS))
            return _last(stream.read().decode("utf-8", "replace"))


def _ended(pid: int) -> bool:
    """Say whether a process is gone, or waits to be reaped."""
    if not Path("/proc/self").exists():
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict):
            return document
    return {}


def _last(text: str) -> str:
    """Return the last line, or what Python said before it printed its stacks."""
    lines = text.strip().splitlines()
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal[-1:] or lines[-1:] or ["no message"])[0][:300]


def _thread(text: str, ident: int) -> str:
    """Return the frames of one thread out of faulthandler's dump, innermost first."""
    for part in re.split(r"\n(?=(?:Current thread|Thread) 0x)", "\n" + text):
        heading = re.match(r"\s*(?:Current thread|Thread) 0x([0-9a-f]+)", part)
        if heading and int(heading[1], 16) == ident:
            return part
    return ""


def _innermost(stack: str) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    if not frames:
        return "a place unknown"
    path, line, function = frames[0]
    return f"{function} ({'/'.join(Path(path).parts[-2:])}:{line})"
