"""The memory that a case needs, and the memory that is available."""

import contextlib
import fcntl
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from attncheck.attention.backend import Backend
from attncheck.core.cases import BYTES_PER_ELEMENT, Case
from attncheck.workers.inside.locks import acquire_lock

CHUNK_BYTES = {"cpu": 1 << 28, "cuda": 5 << 28}  # the most for the reference's chunks
REFERENCE_BYTES = 8 + 4 + 8  # per element: the wide result, its sigma, and temporary tensors of the comparison


def estimate_bytes(case: Case, kind: str, backend: Backend) -> int:
    """Return a case's approximate peak bytes: inputs, results, reference, the kernel's own scores."""
    q = case.batch * case.seqlen_q * case.num_heads * (case.head_dim + case.v_head_dim)
    k = case.batch * case.seqlen_k * case.num_kv_heads * (case.head_dim + case.v_head_dim)
    judged = (q if case.every_row else 0) + k
    chunk = min(CHUNK_BYTES[kind], 80 * case.scores)
    makes_mask = case.needs_mask and not backend.indexes_by_cu_seqlens
    mask = case.batch * case.seqlen_q * case.seqlen_k * (5 if makes_mask else 0)
    return math.ceil(
        (q + k) * (BYTES_PER_ELEMENT[case.dtype] * 4 + 4)
        + judged * REFERENCE_BYTES
        + chunk
        + mask
        + backend.bytes_per_score * case.scores
    )


def free_bytes(kind: str) -> int:
    """Return the bytes that can be allocated; on a GPU, the driver's free memory plus torch's reserved one."""
    if kind == "cuda":
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + unused
    return min(_available_host_bytes(), _cgroup_free_bytes())


def release_cached_memory(kind: str) -> None:
    """Return torch's unused reserved memory to the driver, for the other workers."""
    if kind == "cuda":
        torch.cuda.empty_cache()


def format_bytes(size: int) -> str:
    """Return a number of bytes in GiB or MiB, as text."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _available_host_bytes() -> int:
    """Return the host's MemAvailable, 2^62 if it cannot be read."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return 1 << 62


def _cgroup_free_bytes() -> int:
    """Return the remaining bytes of a container's limit (cgroup v2)."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        lines = (line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
        return max(0, int(limit) - used + cached) if limit != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62


@contextlib.contextmanager
def wait_for_memory(
    folder: str, case: Case, kind: str, backend: Backend, slots: int, on_wait: Callable[[], None]
) -> Iterator[None]:
    """Wait until a case may run together with the other workers' cases, and hold its locks for the block.

    `on_wait` is called every few seconds meanwhile. Half of the free memory is shared by the cases that need no more
    than their part of it, the other half is for one larger case at a time. A case that needs more than half runs alone.
    The locks are the operating system's, so that a dead worker's are released. Every case passes the gate, so that
    small cases cannot keep out forever the one that runs alone.
    """
    share, needed = free_bytes(kind) / (2 * slots), estimate_bytes(case, kind, backend)
    runs_alone = slots > 1 and needed > share * slots

    def leave_room() -> None:
        release_cached_memory(kind)
        on_wait()

    with contextlib.ExitStack() as stack:
        gate, turn, room = (stack.enter_context(open(Path(folder) / name, "ab")) for name in ("gate", "turn", "room"))
        if share < needed <= share * slots:
            acquire_lock(room, False, leave_room)
        acquire_lock(gate, False, leave_room)
        acquire_lock(turn, not runs_alone, leave_room)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            if kind == "cuda" and torch.cuda.memory_reserved() > share:
                release_cached_memory(kind)
