"""One answer for all ranks of a node: the first rank checks and holds a lock, the others wait for its answer."""

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

from attncheck.core.io import interrupts, private_folder
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.doctor.probes.keeping import identify_boot
from attncheck.workers.launcher_env import RankEnv, read_rank_env

TICK_SECONDS = 0.05
START_SECONDS = 60.0  # how long to wait for the first rank to begin; then another one checks for itself
WAIT_SECONDS = 3600.0  # how long to wait for its answer if the policy has no budget
# torchrun, torch's elastic agent and srun set these for each start or each restart.
LAUNCH_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
# Variables that make a process a rank, or configure torchrun; hidden from the ranks that a check starts itself.
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
HIDDEN_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "PET_")


@dataclass(frozen=True)
class NodeRank:
    """The position of this process among those that an external launcher started."""

    leads: bool  # whether it is the first of its node, which checks
    reports: bool  # whether it is rank 0 of all, which prints the report
    launch_id: str = ""  # identifies this launch on this node; "" if we are alone
    local_size: int = 0  # number of ranks on this node; 0: not known


ALONE = NodeRank(True, True)


def node_rank(environ: Mapping[str, str], argv: Sequence[str]) -> NodeRank:
    """Return our position; a single rank if no launcher started us, or if it does not state the ranks."""
    try:
        rank = read_rank_env(environ)
    except BadUsage:
        return ALONE
    if rank is None:
        return ALONE
    local_size = environ.get("LOCAL_WORLD_SIZE", "")
    return NodeRank(
        rank.environment["LOCAL_RANK"] == "0",
        rank.rank == 0,
        _launch_id(rank, environ, argv),
        int(local_size) if local_size.isdecimal() else 0,
    )


def _launch_id(rank: RankEnv, environ: Mapping[str, str], argv: Sequence[str]) -> str:
    """Return an identifier that the ranks of one launch on one node share, and that is unique to the launch."""
    variable = "LOCAL_RANK" if "RANK" in environ else "SLURM_LOCALID"
    launch = [environ.get(name, "") for name in LAUNCH_VARIABLES]
    parts = [identify_boot(), rank.world_size, *launch, *_find_launcher(variable), *argv]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _find_launcher(variable: str) -> list[str]:
    """Return the nearest ancestor process that is not a rank, which started the ranks, and its start time."""
    pid = os.getppid()
    for _ in range(64):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # the process belongs to another user, as with Slurm
            break
        parent = int(_read_stat(pid)[1])
        if b"\0" + variable.encode() + b"=" not in b"\0" + environ or parent < 1:
            break
        pid = parent
    return [str(pid), *_read_stat(pid)[19:20]]  # process ids are reused, so the start time is needed


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …, [19] the start time."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if len(fields) > 19:
            return fields
    return ["", "0", *[""] * 18]


@contextmanager
def hide_rank() -> Iterator[None]:
    """Hide from the block and its children that we are a rank, because its check starts its own ranks."""
    before = dict(os.environ)
    try:
        for name in before:
            if name in HIDDEN or name.startswith(HIDDEN_PREFIXES):
                del os.environ[name]
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


def rendezvous_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder in which ranks of a node find each other: next to the cache, if locks work there."""
    folder = private_folder.cache_folder(environ)
    try:
        if folder is not None:
            with open(folder / "lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return folder
    except OSError:  # a network file system without locks
        pass
    return private_folder.temporary_folder()


@contextmanager
def lead_node(folder: Path | None, node: NodeRank) -> Iterator[Callable[[int], None]]:
    """Yield a function that publishes the answer; inside the block the node's other ranks see that we work on it."""
    if not node.launch_id or folder is None:
        yield lambda code: None
        return
    answer = folder / f"launch-{node.launch_id}.json"
    try:
        lock = open(folder / f"launch-{node.launch_id}.lock", "ab")  # noqa: SIM115
    except OSError as error:
        raise Unanswered(f"the other ranks of this node cannot be determined: {error}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer.unlink(missing_ok=True)  # left by an earlier start of the same command by the same launcher
        yield lambda code: private_folder.replace_private_file(answer, json.dumps({"code": code}))


def follow_leader(folder: Path | None, node: NodeRank, seconds: float) -> int | None:
    """Return the answer of the node's first rank; None if there is no such rank. Raises `Unanswered`."""
    if folder is None:
        return None
    began, has_led = time.monotonic(), False
    try:
        with open(folder / f"launch-{node.launch_id}.lock", "ab") as lock:
            while True:
                is_led = _is_locked(lock)
                code = _read_code(folder / f"launch-{node.launch_id}.json")
                if code is not None:
                    return code
                if has_led and not is_led:
                    raise Unanswered("the first rank of this node ended without answering")
                has_led = has_led or is_led
                waited = time.monotonic() - began
                if not has_led and waited > START_SECONDS:
                    return None
                if waited > seconds:
                    raise Unanswered(f"the first rank of this node did not answer within {seconds:g} s")
                time.sleep(TICK_SECONDS)
                interrupts.raise_if_interrupted()
    except OSError as error:
        raise Unanswered(f"no connection to the first rank of this node: {error}") from None


def _is_locked(lock: IO[bytes]) -> bool:
    """Return whether the first rank holds the lock; ranks that test it do not exclude each other."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _read_code(path: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_bytes())["code"])
    return None
