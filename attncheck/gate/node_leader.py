"""One answer for all ranks of a node: the first one checks and holds a lock meanwhile, the others wait for its word."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from attncheck.core import interrupts
from attncheck.core.errors import BadUsage, Unanswered
from attncheck.gate import cache
from attncheck.workers.launcher_env import RankEnv, rank_env

BOOT = Path("/proc/sys/kernel/random/boot_id")
TICK = 0.05
START_SECONDS = 60.0  # for the first rank to begin; after that another one checks for itself
WAIT_SECONDS = 3600.0  # for its word, where the policy has no budget
# Set by torchrun, torch's elastic agent and srun for each start, or anew for each restart.
_LAUNCH = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
# What makes a process a rank, or tells torchrun how to start: hidden from the ranks that a check starts itself.
_HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
_HIDDEN_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "PET_")


@dataclass(frozen=True)
class Seat:
    """Where this process stands among those that a launcher outside started."""

    first: bool  # of its node: it checks
    speaks: bool  # rank 0 of all: it prints the report
    name: str = ""  # of this launch on this node; "" where we are alone
    local_size: int = 0  # ranks on this node; 0: not told


ALONE = Seat(True, True)


def seat(environ: Mapping[str, str], words: Sequence[str]) -> Seat:
    """Return our seat; alone where no launcher started us, or one that does not say which ranks there are."""
    try:
        found = rank_env(environ)
    except BadUsage:
        return ALONE
    if found is None:
        return ALONE
    local_size = environ.get("LOCAL_WORLD_SIZE", "")
    return Seat(
        found.environment["LOCAL_RANK"] == "0",
        found.rank == 0,
        _name(found, environ, words),
        int(local_size) if local_size.isdigit() else 0,
    )


def _name(found: RankEnv, environ: Mapping[str, str], words: Sequence[str]) -> str:
    """Return what all ranks of one launch on one node share, and no other launch does."""
    mark = "LOCAL_RANK" if "RANK" in environ else "SLURM_LOCALID"
    node = BOOT.read_text().strip() if BOOT.exists() else os.uname().nodename
    parts = [node, found.world_size, *(environ.get(name, "") for name in _LAUNCH), _launcher(mark), *words]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _launcher(mark: str) -> list[str]:
    """Return the process that started the ranks: the nearest ancestor whose environment does not make it one."""
    pid = os.getppid()
    for _ in range(64):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # another user's, as Slurm's is
            break
        parent = int(_stat(pid)[1])
        if f"{mark}=".encode() not in (entry[: len(mark) + 1] for entry in environ.split(b"\0")) or parent < 1:
            break
        pid = parent
    return [str(pid), *_stat(pid)[19:20]]  # with the time of its start: numbers come round again


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …, [19] the time of start."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if len(fields) > 19:
            return fields
    return ["", "0", *[""] * 18]


@contextmanager
def unranked() -> Iterator[None]:
    """Hide from the block, and from what it starts, that we are a rank: a check has ranks of its own."""
    before = dict(os.environ)
    try:
        for name in before:
            if name in _HIDDEN or name.startswith(_HIDDEN_PREFIXES):
                del os.environ[name]
        yield
    finally:
        for name, text in before.items():
            if os.environ.get(name) != text:
                os.environ[name] = text


def meeting_place(environ: Mapping[str, str]) -> Path | None:
    """Return the folder in which ranks of a node find each other: beside the cache, where locks work there."""
    folder = cache.folder(environ)
    try:
        if folder is not None:
            with open(folder / "lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return folder
    except OSError:  # a network's file system without locks
        pass
    return cache.temporary()


@contextmanager
def leading(folder: Path | None, here: Seat) -> Iterator[Callable[[int], None]]:
    """Yield what tells the node's other ranks the answer; inside the block they see that somebody is at work on it."""
    if not here.name or folder is None:
        yield lambda code: None
        return
    word = folder / f"launch-{here.name}.json"
    try:
        lock = open(folder / f"launch-{here.name}.lock", "ab")  # noqa: SIM115
    except OSError as error:
        raise Unanswered(f"the other ranks of this node cannot be told: {error}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        word.unlink(missing_ok=True)  # of an earlier start of the same command by the same launcher
        yield lambda code: cache.put(word, json.dumps({"code": code}))


def followed(folder: Path | None, here: Seat, seconds: float) -> int | None:
    """Return the answer of the node's first rank; None where there is no such rank. Raises `Unanswered`."""
    if folder is None:
        return None
    began, seen = time.monotonic(), False
    try:
        with open(folder / f"launch-{here.name}.lock", "ab") as lock:
            while True:
                held = _held(lock)
                code = _told(folder / f"launch-{here.name}.json")
                if code is not None:
                    return code
                if seen and not held:
                    raise Unanswered("the first rank of this node ended without an answer")
                seen = seen or held
                waited = time.monotonic() - began
                if not seen and waited > START_SECONDS:
                    return None
                if waited > seconds:
                    raise Unanswered(f"the first rank of this node gave no answer within {seconds:g} s")
                time.sleep(TICK)
                interrupts.check()
    except OSError as error:
        raise Unanswered(f"the first rank of this node cannot be heard: {error}") from None


def _held(lock: IO[bytes]) -> bool:
    """Say whether the first rank is at work; those who ask do not disturb each other."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _told(path: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_bytes())["code"])
    return None
