"""Ranks talk to each other: pair by pair, then all at once; every byte is compared, and the largest message timed.

The ring is ring-flash-attn's: two tensors, k's and v's, to the next rank and two from the one before, in one
`batch_isend_irecv` (zhuzilin/ring-flash-attention 0.1.8, ring_flash_attn/utils.py, RingComm). Only those who take part
in an exchange are in a collective; the others wait at the store, so that a fault has its place.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from attncheck.core import codec
from attncheck.core.results.collectives import CollectiveResult, Operation, WrongPlace, bandwidth
from attncheck.ring.worker.data_check import TURNS, Compared, compare, compare_sums, parcel, share, unwritten

if TYPE_CHECKING:
    from attncheck.ring.worker.rank import Member

BYTES = {"cuda": 64 << 20, "cpu": 8 << 20}  # of the largest message; gloo takes eight times as long for no more news
REPEATS = {"cuda": 10, "cpu": 3}  # timed
TIMED = torch.float32
DTYPES = (torch.uint8, torch.bfloat16, TIMED)
ODD = 1021  # elements: no multiple of any number of ranks, of a warp or of a cache line
UNSUPPORTED = ("does not support", "not supported", "Invalid scalar type")

Prepared = tuple[Callable[[], None], Callable[[], list[Compared]]]


@dataclass(frozen=True)
class Party:
    """Those who take part in an exchange, seen from one of them. `rank` is ours among all."""

    rank: int
    world_size: int
    ranks: tuple[int, ...]
    group: Any
    device: str  # "cuda" or "cpu"

    @property
    def size(self) -> int:
        """How many take part."""
        return len(self.ranks)


def communication(member: Member) -> None:
    """Do every exchange of the message; rank 0 answers for all who took part."""
    for index, (operation, over) in enumerate(member.message["items"]):
        member.say({"started": index})
        ranks = tuple(range(member.world_size)) if over == "all" else tuple(map(int, over.split("-")))
        party = Party(member.rank, member.world_size, ranks, member.group, member.device.kind)
        mine = _taken_part(operation, party) if member.rank in ranks else {}
        parts = [json.loads(part) for part in member.shared(f"exchange/{index}", json.dumps(mine))]
        if member.leads:
            member.say({"item": index, "answer": codec.plain(joined(operation, party, [p for p in parts if p]))})


def joined(operation: Operation, party: Party, parts: Sequence[dict[str, Any]]) -> CollectiveResult:
    """Return the exchange that the `parts`, what each rank measured, make together."""
    reason = next((part["refused"] for part in parts if part["refused"]), "")
    if reason:
        return CollectiveResult(operation, party.ranks, "refused", reason)
    size, ms = parts[0]["bytes"], max(part["ms"] for part in parts)
    return CollectiveResult(
        operation,
        party.ranks,
        "ok",
        bytes=size,
        ms=round(ms, 4),
        gb_per_s=round(bandwidth(operation, party.size, size, ms), 3),
        dtypes=tuple(parts[0]["dtypes"]),
        compared=sum(part["compared"] for part in parts),
        wrong=sum(part["wrong"] for part in parts),
        places=tuple(WrongPlace(**part["place"]) for part in parts if part["place"]),
    )


def wait(requests: Sequence[Any]) -> None:
    """Wait for every request; by this name a hanging rank's stack is known to wait for others (launch/stacks.py)."""
    for request in requests:
        request.wait()


def _taken_part(operation: Operation, party: Party) -> dict[str, Any]:
    """Exchange, compare and time; return this rank's part of the answer."""
    found: list[Compared] = []
    names: list[str] = []
    refused, ms, size = "", 0.0, 0
    for dtype in DTYPES:
        try:
            for length in _lengths(operation, party, dtype):
                size = length * dtype.itemsize * _parts(operation, party)
                for turn in TURNS:
                    call, check = _PREPARED[operation](party, turn, length, dtype)
                    call()
                    _settle(party)
                    found += check()
        except RuntimeError as error:
            if party.device == "cuda" or not any(words in str(error) for words in UNSUPPORTED):
                raise
            refused = str(error).splitlines()[0][:200]
            continue
        names.append(str(dtype).removeprefix("torch."))
        if dtype == TIMED:
            ms = _timed(call, party) / (2 if operation == "send_recv" else 1)
            found += check()
    place = next((item.place for item in found if item.place is not None), None)
    return {
        "refused": "" if names else refused,
        "bytes": size,
        "ms": ms,
        "dtypes": names,
        "compared": sum(item.elements for item in found),
        "wrong": sum(item.wrong for item in found),
        "place": None if place is None else asdict(place),
    }


def _parts(operation: Operation, party: Party) -> int:
    """Return how many tensors of one length make up a message: one for each rank of a group, k and v of a ring."""
    return {"send_recv": 1, "ring": 2}.get(operation, party.size)


def _lengths(operation: Operation, party: Party, dtype: torch.dtype) -> Iterator[int]:
    yield 1
    yield ODD
    if dtype == TIMED or (dtype == torch.bfloat16 and party.device == "cuda"):
        yield BYTES[party.device] // dtype.itemsize // _parts(operation, party)


def _settle(party: Party) -> None:
    if party.device == "cuda":
        torch.cuda.synchronize()


def _timed(call: Callable[[], None], party: Party) -> float:
    """Return the median of the milliseconds that `call` takes."""
    if party.device != "cuda":
        taken = []
        for _ in range(REPEATS[party.device]):
            began = time.perf_counter()
            call()
            taken.append((time.perf_counter() - began) * 1e3)
        return statistics.median(taken)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS[party.device] + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median([float(before.elapsed_time(after)) for before, after in pairwise(marks)])


def _send_recv(party: Party, turn: int, length: int, dtype: torch.dtype) -> Prepared:
    """There and back: the first of the pair sends, then the second."""
    first, second = party.ranks
    peer = second if party.rank == first else first
    sent, got = parcel(party.rank, turn, length, dtype, party.device), unwritten(length, dtype, party.device)

    def call() -> None:
        if party.rank == first:
            dist.send(sent, peer, group=party.group)
            dist.recv(got, peer, group=party.group)
        else:
            dist.recv(got, peer, group=party.group)
            dist.send(sent, peer, group=party.group)

    return call, lambda: [compare(got, peer, turn, party.rank, party.world_size)]


def _ring(party: Party, turn: int, length: int, dtype: torch.dtype) -> Prepared:
    place = party.ranks.index(party.rank)
    after, before = party.ranks[(place + 1) % party.size], party.ranks[place - 1]
    sent = parcel(party.rank, turn, 2 * length, dtype, party.device).chunk(2)
    got = unwritten(2 * length, dtype, party.device)

    def call() -> None:
        operations = []
        for out, back in zip(sent, got.chunk(2)):
            operations.append(dist.P2POp(dist.isend, out, after, group=party.group))
            operations.append(dist.P2POp(dist.irecv, back, before, group=party.group))
        wait(dist.batch_isend_irecv(operations))

    return call, lambda: [compare(got, before, turn, party.rank, party.world_size)]


def _all_gather(party: Party, turn: int, length: int, dtype: torch.dtype) -> Prepared:
    sent = parcel(party.rank, turn, length, dtype, party.device)
    got = unwritten(party.size * length, dtype, party.device)

    def call() -> None:
        dist.all_gather_into_tensor(got, sent, group=party.group)

    return call, lambda: [
        compare(part, sender, turn, party.rank, party.world_size)
        for part, sender in zip(got.chunk(party.size), party.ranks)
    ]


def _reduce_scatter(party: Party, turn: int, length: int, dtype: torch.dtype) -> Prepared:
    given = share(party.rank, party.size, turn, length, dtype, party.device)
    got = unwritten(length, dtype, party.device)

    def call() -> None:
        dist.reduce_scatter_tensor(got, given, group=party.group)

    return call, lambda: [compare_sums(got, party.rank, party.size, turn)]


_PREPARED: dict[Operation, Callable[[Party, int, int, torch.dtype], Prepared]] = {
    "send_recv": _send_recv,
    "ring": _ring,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
