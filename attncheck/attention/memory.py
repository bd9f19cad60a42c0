"""How much memory a case needs, and how much there is."""

from __future__ import annotations

import contextlib
import fcntl
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import torch

from attncheck.attention.backend import Backend
from attncheck.core.cases import BYTES, Case

CHUNK = {"cpu": 1 << 28, "cuda": 5 << 30}  # what the reference's chunks take at most
WAIT = 0.02  # seconds between tries for a lock
WAITING_TOLD = 100  # tries between two words about it
REFERENCE_BYTES = 8 + 4 + 8  # per element: the wide result, its sigma, and what comparing takes


def needed(case: Case, kind: str, backend: Backend) -> int:
    """Return about how many bytes a case takes at its peak: inputs, results, the reference, the kernel's own scores."""
    q = case.batch * case.seqlen_q * case.num_heads * (case.head_dim + case.v_head_dim)
    k = case.batch * case.seqlen_k * case.num_kv_heads * (case.head_dim + case.v_head_dim)
    judged = (q if case.every_row else 0) + k
    chunk = min(CHUNK[kind], 80 * case.scores)
    mask = case.batch * case.seqlen_q * case.seqlen_k * (5 if case.needs_mask else 0)
    return math.ceil(
        (q + k) * (BYTES[case.dtype] * 4 + 4)
        + judged * REFERENCE_BYTES
        + chunk
        + mask
        + backend.bytes_per_score * case.scores
    )


def free(kind: str) -> int:
    """Return the bytes that can be had: on the GPU as the driver says, with what torch holds in reserve."""
    if kind == "cuda":
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + unused
    return min(_available(), _cgroup())


def give_back(kind: str) -> None:
    """Return what torch holds in reserve to the driver, for the other workers."""
    if kind == "cuda":
        torch.cuda.empty_cache()


def told(size: int) -> str:
    """Return a size as people say it."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return 1 << 62


def _cgroup() -> int:
    """Return what a container's limit (cgroup v2) leaves."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        lines = (line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
        return max(0, int(limit) - used + cached) if limit != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62


@contextlib.contextmanager
def turn(
    folder: str, case: Case, kind: str, backend: Backend, slots: int, waiting: Callable[[], None]
) -> Iterator[None]:
    """Wait until a case may run beside the other workers' ones; `waiting` is called every few seconds meanwhile.

    A case that needs more than its share of what is free runs alone. The locks are the kernel's, so that a worker that
    dies gives them back; everyone passes the gate, so that small cases cannot keep a large one out for ever.
    """
    large = slots > 1 and needed(case, kind, backend) > free(kind) / (2 * slots)
    with open(Path(folder) / "gate", "ab") as gate, open(Path(folder) / "turn", "ab") as stream:
        _lock(gate, fcntl.LOCK_EX, kind, waiting)
        _lock(stream, fcntl.LOCK_EX if large else fcntl.LOCK_SH, kind, waiting)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            if large:
                give_back(kind)


def _lock(stream: IO[bytes], mode: int, kind: str, waiting: Callable[[], None]) -> None:
    tries = 0
    while True:
        try:
            fcntl.flock(stream, mode | fcntl.LOCK_NB)
            return
        except OSError:
            if tries == 0:
                give_back(kind)
            if tries % WAITING_TOLD == 0:
                waiting()
            tries += 1
            time.sleep(WAIT)
