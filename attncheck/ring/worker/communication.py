"""Exchanges data between ranks, pair by pair and then all at once; compares every byte, times the largest message.

The ring is ring-flash-attn's: two tensors, k and v, to the next rank and two from the previous one, in one
`batch_isend_irecv` (zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/utils.py, RingComm). Only the ranks in an
exchange join its collective. The others wait at the store, so that a fault can be located.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from attncheck.core import codec
from attncheck.core.results.collectives import CollectiveResult, Operation, WrongPlace, compute_bandwidth
from attncheck.ring.worker.data_check import (
    TURNS,
    Comparison,
    compare_pattern,
    compare_sums,
    fill_pattern,
    make_unwritten,
    sum_contribution,
)
from attncheck.ring.worker.rank import RankContext

# Size of the largest message. gloo would take eight times as long on the larger one and show nothing more.
MESSAGE_BYTES = {"cuda": 64 << 20, "cpu": 8 << 20}
REPEATS = {"cuda": 10, "cpu": 3}  # timed repeats
TIMED_DTYPE = torch.float32
DTYPES = (torch.uint8, torch.bfloat16, TIMED_DTYPE)
ODD_LENGTH = 1021  # elements; not a multiple of any number of ranks, of a warp or of a cache line
UNSUPPORTED = ("does not support", "not supported", "Invalid scalar type")

PreparedExchange = tuple[Callable[[], None], Callable[[], list[Comparison]]]


@dataclass(frozen=True)
class Subgroup:
    """The ranks in an exchange, from the view of one of them; `rank` is its rank in the whole group."""

    rank: int
    world_size: int
    ranks: tuple[int, ...]
    group: Any
    device: str  # "cuda" or "cpu"

    @property
    def size(self) -> int:
        """The number of ranks in the exchange."""
        return len(self.ranks)


def communication(context: RankContext) -> None:
    """Run every exchange of the message; rank 0 sends the results for all its ranks."""
    # Each host chose its items from its launcher's settings, which may differ: all ranks use rank 0's items.
    items = json.loads(context.all_gather_text("exchanges", json.dumps(context.message["items"]))[0])
    for index, (operation, over) in enumerate(items):
        context.send_if_leader({"started": index})
        ranks = tuple(range(context.world_size)) if over == "all" else tuple(map(int, over.split("-")))
        subgroup = Subgroup(context.rank, context.world_size, ranks, context.group, context.device.kind)
        local_part = _run_exchange(operation, subgroup) if context.rank in ranks else {}
        parts = [json.loads(part) for part in context.all_gather_text(f"exchange/{index}", json.dumps(local_part))]
        if context.is_leader:
            result = merge_parts(operation, subgroup, [part for part in parts if part])
            context.send_if_leader({"item": index, "answer": codec.to_plain(result)})


def merge_parts(operation: Operation, subgroup: Subgroup, parts: Sequence[dict[str, Any]]) -> CollectiveResult:
    """Return the result of an exchange from its `parts`, the measurements of each rank."""
    reason = next((part["refused"] for part in parts if part["refused"]), "")
    if reason:
        return CollectiveResult(operation, subgroup.ranks, "refused", reason)
    size, ms = parts[0]["bytes"], max(part["ms"] for part in parts)
    return CollectiveResult(
        operation,
        subgroup.ranks,
        "ok",
        bytes=size,
        ms=round(ms, 4),
        gb_per_s=round(compute_bandwidth(operation, subgroup.size, size, ms), 3),
        dtypes=tuple(parts[0]["dtypes"]),
        compared=sum(part["compared"] for part in parts),
        wrong=sum(part["wrong"] for part in parts),
        places=tuple(WrongPlace(**part["place"]) for part in parts if part["place"]),
    )


def wait(requests: Sequence[Any]) -> None:
    """Wait for every request; workers/stacks.py recognises by this function's name that a rank waits for its peers."""
    for request in requests:
        request.wait()


def _run_exchange(operation: Operation, subgroup: Subgroup) -> dict[str, Any]:
    """Exchange, compare and time one operation; return this rank's part of the result."""
    comparisons: list[Comparison] = []
    dtypes: list[str] = []
    refusal, ms, size = "", 0.0, 0
    for dtype in DTYPES:
        try:
            for length in _message_lengths(operation, subgroup, dtype):
                size = length * dtype.itemsize * _tensors_per_message(operation, subgroup)
                for turn in TURNS:
                    call, check = _PREPARE[operation](subgroup, turn, length, dtype)
                    call()
                    _synchronize(subgroup)
                    comparisons += check()
        except RuntimeError as error:
            if subgroup.device == "cuda" or not any(phrase in str(error) for phrase in UNSUPPORTED):
                raise
            refusal = str(error).splitlines()[0][:200]
            continue
        dtypes.append(str(dtype).removeprefix("torch."))
        if dtype == TIMED_DTYPE:
            ms = _time_exchange(call, subgroup) / (2 if operation == "send_recv" else 1)
            comparisons += check()
    first_wrong = next(
        (comparison.first_wrong for comparison in comparisons if comparison.first_wrong is not None), None
    )
    return {
        "refused": "" if dtypes else refusal,
        "bytes": size,
        "ms": ms,
        "dtypes": dtypes,
        "compared": sum(comparison.elements for comparison in comparisons),
        "wrong": sum(comparison.wrong for comparison in comparisons),
        "place": None if first_wrong is None else asdict(first_wrong),
    }


def _tensors_per_message(operation: Operation, subgroup: Subgroup) -> int:
    """Return how many tensors of one length make a message: k and v of a ring, one per rank of a collective."""
    return {"send_recv": 1, "ring": 2}.get(operation, subgroup.size)


def _message_lengths(operation: Operation, subgroup: Subgroup, dtype: torch.dtype) -> Iterator[int]:
    yield 1
    yield ODD_LENGTH
    if dtype == TIMED_DTYPE or (dtype == torch.bfloat16 and subgroup.device == "cuda"):
        yield MESSAGE_BYTES[subgroup.device] // dtype.itemsize // _tensors_per_message(operation, subgroup)


def _synchronize(subgroup: Subgroup) -> None:
    if subgroup.device == "cuda":
        torch.cuda.synchronize()


def _time_exchange(call: Callable[[], None], subgroup: Subgroup) -> float:
    """Return the median of the milliseconds of `call`."""
    if subgroup.device != "cuda":
        elapsed_ms = []
        for _ in range(REPEATS[subgroup.device]):
            began = time.perf_counter()
            call()
            elapsed_ms.append((time.perf_counter() - began) * 1e3)
        return statistics.median(elapsed_ms)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS[subgroup.device] + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median([float(before.elapsed_time(after)) for before, after in pairwise(events)])


def _prepare_send_recv(subgroup: Subgroup, turn: int, length: int, dtype: torch.dtype) -> PreparedExchange:
    """Prepare a message in both directions: the first of the pair sends, then the second."""
    first, second = subgroup.ranks
    peer = second if subgroup.rank == first else first
    sent = fill_pattern(subgroup.rank, turn, length, dtype, subgroup.device)
    received = make_unwritten(length, dtype, subgroup.device)

    def call() -> None:
        if subgroup.rank == first:
            dist.send(sent, peer, group=subgroup.group)
            dist.recv(received, peer, group=subgroup.group)
        else:
            dist.recv(received, peer, group=subgroup.group)
            dist.send(sent, peer, group=subgroup.group)

    return call, lambda: [compare_pattern(received, peer, turn, subgroup.rank, subgroup.world_size)]


def _prepare_ring(subgroup: Subgroup, turn: int, length: int, dtype: torch.dtype) -> PreparedExchange:
    position = subgroup.ranks.index(subgroup.rank)
    next_rank, previous_rank = subgroup.ranks[(position + 1) % subgroup.size], subgroup.ranks[position - 1]
    sent = fill_pattern(subgroup.rank, turn, 2 * length, dtype, subgroup.device).chunk(2)
    received = make_unwritten(2 * length, dtype, subgroup.device)

    def call() -> None:
        operations = []
        for outgoing, incoming in zip(sent, received.chunk(2)):
            operations.append(dist.P2POp(dist.isend, outgoing, next_rank, group=subgroup.group))
            operations.append(dist.P2POp(dist.irecv, incoming, previous_rank, group=subgroup.group))
        wait(dist.batch_isend_irecv(operations))

    return call, lambda: [compare_pattern(received, previous_rank, turn, subgroup.rank, subgroup.world_size)]


def _prepare_all_gather(subgroup: Subgroup, turn: int, length: int, dtype: torch.dtype) -> PreparedExchange:
    sent = fill_pattern(subgroup.rank, turn, length, dtype, subgroup.device)
    received = make_unwritten(subgroup.size * length, dtype, subgroup.device)

    def call() -> None:
        dist.all_gather_into_tensor(received, sent, group=subgroup.group)

    return call, lambda: [
        compare_pattern(part, sender, turn, subgroup.rank, subgroup.world_size)
        for part, sender in zip(received.chunk(subgroup.size), subgroup.ranks)
    ]


def _prepare_reduce_scatter(subgroup: Subgroup, turn: int, length: int, dtype: torch.dtype) -> PreparedExchange:
    contribution = sum_contribution(subgroup.rank, subgroup.size, turn, length, dtype, subgroup.device)
    received = make_unwritten(length, dtype, subgroup.device)

    def call() -> None:
        dist.reduce_scatter_tensor(received, contribution, group=subgroup.group)

    return call, lambda: [compare_sums(received, subgroup.rank, subgroup.size, turn)]


_PREPARE: dict[Operation, Callable[[Subgroup, int, int, torch.dtype], PreparedExchange]] = {
    "send_recv": _prepare_send_recv,
    "ring": _prepare_ring,
    "all_gather": _prepare_all_gather,
    "reduce_scatter": _prepare_reduce_scatter,
}
